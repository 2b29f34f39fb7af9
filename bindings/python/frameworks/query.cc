// SPDX-License-Identifier: Apache-2.0
// Finds the C function behind a method or a property.
#include "frameworks/query.h"

namespace anyop {
namespace {

PyCFunction CFunction(PyObject* bound) {
  const Ref builtins(PyImport_ImportModule("builtins"));
  const Ref len = Attribute(builtins.get(), "len");
  if (!bound || !len || Py_TYPE(bound) != Py_TYPE(len.get())) return nullptr;
  return PyCFunction_GetFlags(bound) == METH_NOARGS ? PyCFunction_GetFunction(bound) : nullptr;
}

}  // namespace

bool MakeQuery(PyObject* owner, PyObject* sample, const char* name, bool is_property,
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
