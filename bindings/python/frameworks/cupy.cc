// SPDX-License-Identifier: Apache-2.0
// Two questions to anyop._cupy.
#include "frameworks/cupy.h"

#include "dtype.h"

namespace anyop {
namespace {

// A function of anyop._cupy, found once and kept; nullptr with an error set.
PyObject* Function(const char* name) {
  const Ref module(PyImport_ImportModule("anyop._cupy"));
  return module ? PyObject_GetAttrString(module.get(), name) : nullptr;
}

void* PointerIn(const Ref& number) { return number ? PyLong_AsVoidPtr(number.get()) : nullptr; }

}  // namespace

bool CupyStream(int32_t device_id, void** stream) {
  const Ref module(PyImport_ImportModule("anyop._cupy"));
  const Ref pointer(module ? PyObject_CallMethod(module.get(), "current_stream", "i", device_id)
                           : nullptr);
  *stream = PointerIn(pointer);
  return pointer && !PyErr_Occurred();
}

PyObject* NewCupyArray(AnyopTensor* tensor) {
  static PyObject* empty = nullptr;
  if (!empty) empty = Function("empty");
  Ref shape(PyTuple_New(tensor->ndim));
  if (!empty || !shape) return nullptr;
  for (int32_t d = 0; d < tensor->ndim; ++d) {
    PyObject* size = PyLong_FromLongLong(tensor->shape[d]);
    if (!size || PyTuple_SetItem(shape.get(), d, size)) return nullptr;
  }
  const Ref made(PyObject_CallFunction(empty, "isO", tensor->device_id,
                                       DtypeName(AnyopDtypeOf(tensor)), shape.get()));
  PyObject *array, *address;
  if (!made || !PyArg_ParseTuple(made.get(), "OO", &array, &address)) return nullptr;
  tensor->data = PyLong_AsVoidPtr(address);
  if (PyErr_Occurred()) return nullptr;
  Py_INCREF(array);
  return array;
}

}  // namespace anyop
