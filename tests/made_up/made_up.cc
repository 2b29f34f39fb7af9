// SPDX-License-Identifier: Apache-2.0
// A framework of this test's own, by one file: its arrays have the attributes address (an int),
// shape (a tuple) and written (how often), and hold float32 in host memory.
#include "frameworks/loans.h"

namespace anyop {
namespace {

extern const Framework row;

Found Find(PyTypeObject* type, std::string*) {
  const Ref array = Attribute(LoadedModule("made_up"), "Array");
  if (!IsSubtype(type, array)) return kNotMine;
  return Remember(type, Is(type, array), {&row, nullptr, true});
}

Way View(Loans* loans, const Source*, PyObject* object, bool, AnyopTensor* tensor) {
  const Ref address = Attribute(object, "address"), shape = Attribute(object, "shape");
  if (!address || !shape || !PyTuple_Check(shape.get()))
    return loans->Reject(PyExc_ValueError, "is empty");
  const auto ndim = static_cast<int32_t>(PyTuple_Size(shape.get()));
  auto* sizes = loans->arena->Take<int64_t>(ndim);
  for (int32_t d = 0; d < ndim; ++d) sizes[d] = PyLong_AsLongLong(PyTuple_GetItem(shape.get(), d));
  *tensor = {PyLong_AsVoidPtr(address.get()), 1, 0, ndim, 2, 32, 1, sizes, nullptr, 0};
  return PyErr_Occurred() ? Way::kRefused : Way::kPlain;
}

int32_t Allocate(Loans*, AnyopTensor* tensor, PyObject** object) {
  Ref shape(PyTuple_New(tensor->ndim));
  for (int32_t d = 0; shape && d < tensor->ndim; ++d)
    PyTuple_SetItem(shape.get(), d, PyLong_FromLongLong(tensor->shape[d]));
  Ref made(PyObject_CallMethod(LoadedModule("made_up"), "Array", "(O)", shape.get()));
  if (!made) return kAnyopPending;
  const Ref address = Attribute(made.get(), "address");
  tensor->data = address ? PyLong_AsVoidPtr(address.get()) : nullptr;
  *object = made.Release();
  return kAnyopOk;
}

void MarkWritten(PyObject* object) {
  const Ref done(PyObject_CallMethod(object, "mark", nullptr));
  if (!done) PyErr_Clear();
}

const Framework row = [] {
  Framework f;
  f.name = "made_up";
  f.find = Find;
  f.view = View;
  f.mark_written = MarkWritten;
  f.allocate = Allocate;
  f.take = {"made_up", "from_dlpack"};
  return f;
}();
const Listed listed(&row);

}  // namespace
}  // namespace anyop
