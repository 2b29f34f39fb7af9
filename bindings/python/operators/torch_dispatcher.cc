// SPDX-License-Identifier: Apache-2.0
// Operators in torch.ops, and their errors on the way through torch's C++ back to Python, of the
// right kind: torch's entry is pybind11's, which lets an exception say itself what it is in Python.
#include <stdexcept>
#include <string>

#include "frameworks/torch.h"
#include "gil.h"
#include "module.h"
#include "objects.h"
#include "torch_entry.h"

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
    if (status_ != kAnyopPending)
      RaiseStatus(status_, what());
    else if (kept)
      SetException(std::exchange(kept, nullptr));
    else
      PyErr_SetString(PyExc_RuntimeError, what());
  }

 private:
  int32_t status_;
};

void RaiseThroughTorch(int32_t status, const char* message) { throw Error(status, message); }

// keep_torch_error(exception): what a Python kernel raises below a kernel of ours. torch's C shim
// would lose it; the next kAnyopPending of this thread raises it again.
PyObject* KeepError(PyObject*, PyObject* exception) {
  const Ref old(std::exchange(kept, Py_NewRef(exception)));
  Py_RETURN_NONE;
}

PyObject* define_recorder = nullptr;  // a function of Python; it keeps its own error

int32_t DefineRecorder(const char* operator_name, int32_t destination) {
  const WithGil locked;
  if (!locked) return -1;
  const Ref defined(PyObject_CallFunction(define_recorder, "si", operator_name, destination));
  if (!defined) PyErr_Clear();
  return defined.get() == Py_True ? 0 : -1;
}

// Operators into torch.ops; None, or the reason why not. define(operator, whether results are
// given) gives an overload that records its kernel, and says whether it could.
PyObject* Register(PyObject*, PyObject* define) {
  if (!define_recorder) define_recorder = Py_NewRef(define);
  return Py_BuildValue("z", AnyopRegisterTorch(LoadTorchGlue(), RaiseThroughTorch,
                                               DefineRecorder));  // None: nothing is wrong
}

// Why the operator of that name is not in torch.ops; None when it is.
PyObject* Problem(const char* name) { return Py_BuildValue("z", AnyopTorchProblem(name)); }

PyMethodDef methods[] = {{"register_torch", Guarded<Register>, METH_O, nullptr},
                         {"torch_problem", Guarded<OfText<Problem>>, METH_O, nullptr},
                         {"keep_torch_error", Guarded<KeepError>, METH_O, nullptr},
                         {}};
const ModulePart part(methods);

}  // namespace
}  // namespace anyop
