// SPDX-License-Identifier: Apache-2.0
// What several files do with Python's objects: tuples and lists, objects of the module's own types,
// an error that waits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "python.h"

namespace anyop {

// Fills a new tuple or list with what item(i) makes: a new reference, or nullptr with an error set.
template <int (*set)(PyObject*, Py_ssize_t, PyObject*), typename Item>
PyObject* Filled(PyObject* made, Py_ssize_t count, const Item& item) {
  Ref holder(made);
  for (Py_ssize_t i = 0; made && i < count; ++i) {
    PyObject* value = item(i);
    if (!value) return nullptr;
    set(made, i, value);
  }
  return holder.Release();
}
template <typename Item>
PyObject* NewTuple(Py_ssize_t count, const Item& item) {
  return Filled<PyTuple_SetItem>(PyTuple_New(count), count, item);
}
template <typename Item>
PyObject* NewList(Py_ssize_t count, const Item& item) {
  return Filled<PyList_SetItem>(PyList_New(count), count, item);
}

// A tuple of count values, each times factor.
inline PyObject* NewSizes(const int64_t* values, int count, int64_t factor = 1) {
  return NewTuple(count, [&](Py_ssize_t i) { return PyLong_FromLongLong(values[i] * factor); });
}

// The end of Py_tp_dealloc, of the module's own types: PyType_GenericAlloc makes their objects,
// zero behind the head, and none is watched for cycles.
inline void FreeObject(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  PyObject_Free(self);
  Py_DECREF(type);
}

// The arguments of a call given as a tuple and a dict, in the form of METH_FASTCALL. Borrowed of
// both; an error may be set.
struct Row {
  Row(PyObject* args, PyObject* named) : count(PyTuple_Size(args)) {
    for (Py_ssize_t i = 0; i < count; ++i) values.push_back(PyTuple_GetItem(args, i));
    if (named && PyDict_Size(named)) keywords = Ref(PySequence_Tuple(named));
    for (Py_ssize_t k = 0; keywords && k < PyTuple_Size(keywords.get()); ++k)
      values.push_back(PyDict_GetItem(named, PyTuple_GetItem(keywords.get(), k)));
  }
  Py_ssize_t count;
  std::vector<PyObject*> values;
  Ref keywords;
};

// The place of a keyword among interned names; count where it has none.
inline uint32_t FindKeyword(PyObject* const* names, uint32_t count, PyObject* name) {
  uint32_t i = 0;
  while (i < count && names[i] != name) ++i;  // call sites intern their keywords
  if (__builtin_expect(i < count, 1)) return i;
  for (i = 0; i < count && PyUnicode_Compare(name, names[i]) != 0; ++i) {
  }
  return i;
}

// The error that was set, or none, taken from Python; let go of unless it is set again.
class TakenError : NoCopy {
 public:
  TakenError() { PyErr_Fetch(&kind_, &value_, &trace_); }
  ~TakenError() {
    for (PyObject* part : {kind_, value_, trace_}) Py_XDECREF(part);
  }

  void SetAgain() {
    PyErr_Restore(kind_, value_, trace_);
    kind_ = value_ = trace_ = nullptr;
  }
  bool Is(PyObject* kind) const { return PyErr_GivenExceptionMatches(kind_, kind); }
  bool has_trace() const { return trace_; }
  // The exception, with its traceback.
  PyObject* Exception() {
    PyErr_NormalizeException(&kind_, &value_, &trace_);
    if (trace_) PyException_SetTraceback(value_, trace_);
    return value_;
  }
  // Its str(); false where there is none.
  bool Text(std::string* text) {
    Exception();
    const Ref said(value_ ? PyObject_Str(value_) : nullptr);
    const char* utf8 = said ? PyUnicode_AsUTF8AndSize(said.get(), nullptr) : nullptr;
    PyErr_Clear();
    if (utf8) *text = utf8;
    return utf8;
  }

 private:
  PyObject *kind_, *value_, *trace_;
};

// Raises an exception again, which it takes over, with its traceback.
inline void SetException(PyObject* exception) {
  PyErr_Restore(Py_NewRef(reinterpret_cast<PyObject*>(Py_TYPE(exception))), exception,
                PyException_GetTraceback(exception));
}

// Within its life the error that was set is not; then it is again.
class WithoutError {
 public:
  WithoutError() = default;
  ~WithoutError() { error_.SetAgain(); }

 private:
  TakenError error_;
};

}  // namespace anyop
