// SPDX-License-Identifier: Apache-2.0
// A question to a Python object that is asked in every call: by the C function behind the
// attribute, where that can be had.
#pragma once

#include "python.h"

namespace anyop {

// A method without arguments, or a property: called as the C function behind it, else as an
// attribute.
struct Query {
  PyObject* name = nullptr;
  PyObject* descriptor = nullptr;  // a property
  descrgetfunc get = nullptr;
  PyCFunction function = nullptr;  // a method, or a function of a module (then owner is the module)
  PyObject* owner = nullptr;

  // A new reference, or nullptr with an error set.
  PyObject* Ask(PyObject* object) const {
    if (get) return get(descriptor, object, reinterpret_cast<PyObject*>(Py_TYPE(object)));
    if (function) return function(object, nullptr);
    return PyObject_CallMethodObjArgs(object, name, nullptr);
  }
  // 0 or 1; -1 with an error set.
  int AskTruth(PyObject* object) const {
    const Ref answer(Ask(object));
    if (answer.get() == Py_False) return 0;
    return answer ? PyObject_IsTrue(answer.get()) : -1;
  }
};

// The C function behind a method without arguments; nullptr where it has none.
inline PyCFunction CFunction(PyObject* bound) {
  const Ref builtins(PyImport_ImportModule("builtins"));
  const Ref len = Attribute(builtins.get(), "len");
  if (!bound || !len || Py_TYPE(bound) != Py_TYPE(len.get())) return nullptr;
  return PyCFunction_GetFlags(bound) == METH_NOARGS ? PyCFunction_GetFunction(bound) : nullptr;
}

// Finds a property of the type owner, or a method of sample. False when there is none.
inline bool MakeQuery(PyObject* owner, PyObject* sample, const char* name, bool is_property,
                      Query* query) {
  query->name = PyUnicode_InternFromString(name);
  Ref attribute = Attribute(owner, name);
  if (!attribute) return false;
  if (is_property) {
    query->get =
        reinterpret_cast<descrgetfunc>(PyType_GetSlot(Py_TYPE(attribute.get()), Py_tp_descr_get));
    query->descriptor = attribute.Release();
    return query->get != nullptr;
  }
  query->function = CFunction(Attribute(sample, name).get());
  return true;
}

}  // namespace anyop
