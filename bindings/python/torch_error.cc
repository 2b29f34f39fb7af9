// SPDX-License-Identifier: Apache-2.0
// torch's entry from Python is pybind11's, and pybind11 lets an exception say itself what it is in
// Python.
#include "torch_error.h"

#include <stdexcept>
#include <string>

#include "operators/function.h"

// The class of that name in pybind11, of which only the vtable matters: it is found by its name.
// Where pybind11 should change it, the error is a RuntimeError with the same text.
namespace pybind11 {
class __attribute__((visibility("default"))) builtin_exception : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
  virtual void set_error() const = 0;
};
}  // namespace pybind11

namespace anyop {
namespace {

thread_local PyObject* kept = nullptr;  // touched with the GIL held only

class Error final : public pybind11::builtin_exception {
 public:
  Error(int32_t status, const char* message) : builtin_exception(message), status_(status) {}

  void set_error() const override {
    if (status_ != kAnyopPending) return RaiseStatus(status_, what());
    PyObject* exception = kept;
    kept = nullptr;
    if (!exception) return PyErr_SetString(PyExc_RuntimeError, what());
    auto* type = reinterpret_cast<PyObject*>(Py_TYPE(exception));
    Py_INCREF(type);
    PyErr_Restore(type, exception, PyException_GetTraceback(exception));
  }

 private:
  int32_t status_;
};

}  // namespace

void RaiseThroughTorch(int32_t status, const char* message) { throw Error(status, message); }

PyObject* KeepTorchError(PyObject*, PyObject* exception) {
  Py_INCREF(exception);
  PyObject* old = kept;
  kept = exception;
  Py_XDECREF(old);
  Py_RETURN_NONE;
}

}  // namespace anyop
