// SPDX-License-Identifier: Apache-2.0
// CuPy's arrays by DLPack; its current stream and its results by its Python functions, as CuPy has
// no DLPack exchange functions (14.2).
#include "frameworks/dlpack.h"
#include "frameworks/loans.h"
#include "objects.h"
#include "tensors/dtype.h"

namespace anyop {
namespace {

extern const Framework row;

Found Find(PyTypeObject* type, std::string*) {
  const Ref array = Attribute(LoadedModule("cupy"), "ndarray");
  if (!IsSubtype(type, array)) return kNotMine;
  return Remember(type, Is(type, array), {&row, nullptr, true});
}

// The call runs on CuPy's own current stream: there is nothing to wait for.
Way View(Loans* loans, const Source*, PyObject* object, bool writes, AnyopTensor* tensor) {
  return ViewCapsule(loans, object, Ref(PyLong_FromLong(-1)).get(), writes, tensor);
}

// The stream that is current for the device in this thread.
bool CurrentStream(const Source*, int32_t, int32_t device_id, void** stream) {
  const Ref pointer = CallImported("anyop._cupy", "current_stream", "i", device_id);
  *stream = pointer ? PyLong_AsVoidPtr(pointer.get()) : nullptr;
  return pointer && !PyErr_Occurred();
}

// A new array by CuPy's allocator.
int32_t Allocate(Loans*, AnyopTensor* tensor, PyObject** object) {
  static PyObject* empty = nullptr;
  if (!empty) empty = Imported("anyop._cupy", "empty").Release();
  const Ref shape(NewSizes(tensor->shape, tensor->ndim));
  if (!empty || !shape) return kAnyopPending;
  const Ref made(PyObject_CallFunction(empty, "isO", tensor->device_id,
                                       DtypeName(AnyopDtypeOf(tensor)), shape.get()));
  PyObject *array, *address;
  if (!made || !PyArg_ParseTuple(made.get(), "OO", &array, &address)) return kAnyopPending;
  tensor->data = PyLong_AsVoidPtr(address);
  if (PyErr_Occurred()) return kAnyopPending;
  *object = Py_NewRef(array);
  return kAnyopOk;
}

const Framework row = [] {
  Framework f;
  f.name = "cupy";
  f.view_holds = true;
  f.find = Find;
  f.view = View;
  f.allocate = Allocate;
  f.stream = CurrentStream;
  f.is_read_only = IsReadOnlyCapsule;
  f.take = {"cupy", "from_dlpack"};
  return f;
}();
const Listed listed(&row);

}  // namespace
}  // namespace anyop
