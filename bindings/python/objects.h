// SPDX-License-Identifier: Apache-2.0
// What several files do with Python's objects: tuples of sizes, objects of the module's own types,
// an error that waits.
#pragma once

#include <cstdint>

#include "python.h"

namespace anyop {

// A tuple of count values, each times factor; nullptr with an error set.
inline PyObject* NewSizes(const int64_t* values, int count, int64_t factor = 1) {
  Ref tuple(PyTuple_New(count));
  for (int i = 0; tuple && i < count; ++i) {
    PyObject* value = PyLong_FromLongLong(values[i] * factor);
    if (!value) return nullptr;
    PyTuple_SetItem(tuple.get(), i, value);
  }
  return tuple.Release();
}

// The end of Py_tp_dealloc.
inline void FreeObject(PyObject* self) {
  PyTypeObject* type = Py_TYPE(self);
  reinterpret_cast<freefunc>(PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

// Within its life the error that was set is not; then it is again.
class WithoutError {
 public:
  WithoutError() { PyErr_Fetch(&kind_, &value_, &trace_); }
  ~WithoutError() { PyErr_Restore(kind_, value_, trace_); }
  WithoutError(const WithoutError&) = delete;
  WithoutError& operator=(const WithoutError&) = delete;

 private:
  PyObject *kind_, *value_, *trace_;
};

}  // namespace anyop
