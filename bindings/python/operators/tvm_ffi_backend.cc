// SPDX-License-Identifier: Apache-2.0
// Functions of tvm-ffi as implementations, from Python: those given, and those that a module of
// Python makes.
#include <string>

#include "gil.h"
#include "module.h"
#include "objects.h"
#include "operators/python_kernel.h"
#include "tvm_ffi_entry.h"

namespace anyop {
namespace {

// The object behind a tvm_ffi.Function; nullptr with an error set.
void* Handle(PyObject* function) {
  const Ref chandle(PyObject_CallMethod(function, "__chandle__", nullptr));
  return chandle ? PyLong_AsVoidPtr(chandle.get()) : nullptr;
}

std::string TakeError() {
  std::string text;
  return TakenError().Text(&text) ? text : "an error without text";
}

void* FindWithLock(const std::string& module, const std::string& function, std::string* why) {
  const Ref found =
      CallImported("anyop.backend.tvm_ffi", "find", "ss", module.c_str(), function.c_str());
  if (found && PyUnicode_Check(found.get())) {
    const char* text = PyUnicode_AsUTF8AndSize(found.get(), nullptr);
    *why = text ? text : TakeError();
    return nullptr;
  }
  void* handle = found ? Handle(found.get()) : nullptr;
  if (!handle) *why = TakeError();
  if (handle) AnyopRetainTvmFfi(handle);
  return handle;
}

void* Find(const std::string& module, const std::string& function, std::string* why) {
  const WithGil gil;
  if (gil) return FindWithLock(module, function, why);
  *why = "it is found by Python, which has ended";
  return nullptr;
}

bool Raise(const char* message) {
  if (IsEnding() || !PyGILState_GetThisThreadState()) return false;
  const WithGil gil;
  return gil && RaiseKernelError(message);
}

// register_tvm_ffi_call(op, backend, name, source, when, device_type, priority, deterministic,
// text, function): function is a tvm_ffi.Function, or None where the text says how it is found.
PyObject* RegisterCall(PyObject*, PyObject* args) {
  const char *name, *text;
  PyObject* function;
  AnyopImplementation described = {};
  described.size = sizeof described;
  int deterministic;
  if (!PyArg_ParseTuple(args, "sszsziipsO", &name, &described.backend, &described.name,
                        &described.source, &described.when, &described.device_type,
                        &described.priority, &deterministic, &text, &function)) {
    return nullptr;
  }
  described.flags = deterministic ? kAnyopDeterministic : 0;
  const AnyopOperator* op = AnyopFindOperator(name);
  void* handle = function == Py_None ? nullptr : Handle(function);
  if (PyErr_Occurred()) return nullptr;
  return NoneOrError(op ? AnyopAddTvmFfiCall(op, &described, text, handle)
                        : int32_t{kAnyopValueError});
}

// What is wrong; None where nothing is.
PyObject* Register(const char* path) { return Py_BuildValue("z", AnyopRegisterTvmFfi(path)); }

PyObject* NoteLibrary(const char* path) {
  static std::string kept;  // the first
  if (kept.empty()) kept = path;
  if (!kept.empty()) AnyopNoteTvmFfi(kept.c_str());
  Py_RETURN_NONE;
}

PyMethodDef methods[] = {{"register_tvm_ffi", Guarded<OfText<Register>>, METH_O, nullptr},
                         {"note_tvm_ffi", Guarded<OfText<NoteLibrary>>, METH_O, nullptr},
                         {"register_tvm_ffi_call", Guarded<RegisterCall>, METH_VARARGS, nullptr},
                         {}};
const ModulePart part(methods);
// Nothing is imported before a function is looked for.
const bool installed = (AnyopSetFindInPython(Find), AnyopSetRaiseInPython(Raise), true);

}  // namespace

}  // namespace anyop
