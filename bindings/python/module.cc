// SPDX-License-Identifier: Apache-2.0
// The extension module _anyop: functions of all operators, and what the package asks about them.
#include <dlfcn.h>

#include <string>

#include "anyop/anyop.h"
#include "anyop/library_file.h"
#include "aten/aten_function.h"
#include "aten/aten_tensor.h"
#include "call/call.h"
#include "frameworks/torch.h"
#include "gil.h"
#include "guarded.h"
#include "operator/registry.h"
#include "operators/function.h"
#include "operators/observe.h"
#include "operators/routing.h"
#include "operators/thread_scope.h"
#include "operators/tvm_ffi_backend.h"
#include "operators/view.h"
#include "python.h"
#include "tensors/dtype.h"
#include "threads/pool.h"
#include "torch_entry.h"
#include "torch_error.h"
#include "tvm_ffi_entry.h"

namespace anyop {
namespace {

const AnyopOp* Table(PyObject* name) {
  const Operator* op = FindByName(name);
  return op ? op->table : nullptr;
}

// [(namespace, name, function)] of every operator from index first on, in the order of full names.
PyObject* Functions(PyObject*, PyObject*) {
  Ref list(PyList_New(0));
  const int32_t count = AnyopListOperators(nullptr, 0);
  if (count < 0) return PyErr_NoMemory();
  std::vector<const AnyopOperator*> operators(static_cast<size_t>(count));
  AnyopListOperators(operators.data(), count);
  for (const AnyopOperator* handle : operators) {
    const auto* op = reinterpret_cast<const Operator*>(handle);
    const Ref function(NewFunction(op));
    const Ref row(
        function ? Py_BuildValue("(ssO)", op->table->name_space, op->table->name, function.get())
                 : nullptr);
    if (!list || !row || PyList_Append(list.get(), row.get())) return nullptr;
  }
  return list.Release();
}

PyObject* Schema(PyObject*, PyObject* name) {
  const AnyopOp* table = Table(name);
  return table ? PyUnicode_FromString(table->schema) : nullptr;
}

PyObject* Metadata(PyObject*, PyObject* name) {
  const AnyopOp* table = Table(name);
  return table ? PyUnicode_FromString(table->metadata) : nullptr;
}

// load_library(path): [(namespace, name)] of its operators, those that were there already among
// them.
PyObject* LoadLibrary(PyObject*, PyObject* path) {
  const char* text = PyUnicode_AsUTF8AndSize(path, nullptr);
  if (!text) return nullptr;
  if (const int32_t status = AnyopLoadLibrary(text)) return NoneOrError(status);
  void* library = dlopen(text, RTLD_NOW | RTLD_NOLOAD);
  const auto entry = reinterpret_cast<AnyopLibraryFunction>(dlsym(library, "AnyopLibraryEntry"));
  const AnyopLibrary* loaded = entry();
  dlclose(library);  // it stays: AnyopLoadLibrary has it open
  Ref list(PyList_New(0));
  for (uint32_t i = 0; list && i < loaded->num_ops; ++i) {
    const Ref row(Py_BuildValue("(ss)", loaded->ops[i]->name_space, loaded->ops[i]->name));
    if (!row || PyList_Append(list.get(), row.get())) return nullptr;
  }
  return list.Release();
}

// Raises ValueError for a library whose file is not whole, of what Python itself opens.
PyObject* CheckLibrary(PyObject*, PyObject* path) {
  const char* text = PyUnicode_AsUTF8AndSize(path, nullptr);
  char problem[1024];
  if (!text) return nullptr;
  if (AnyopLibraryFileIsWhole(text, problem, sizeof problem)) Py_RETURN_NONE;
  PyErr_SetString(PyExc_ValueError, problem);
  return nullptr;
}

PyObject* RegisterTvmFfi(PyObject*, PyObject* path) {
  const char* text = PyUnicode_AsUTF8AndSize(path, nullptr);
  if (!text) return nullptr;
  return Py_BuildValue("z", AnyopRegisterTvmFfi(text));  // None: nothing is wrong
}

PyObject* NoteTvmFfi(PyObject*, PyObject* path) {
  static std::string kept;  // the first
  const char* text = PyUnicode_AsUTF8AndSize(path, nullptr);
  if (!text) return nullptr;
  if (kept.empty()) kept = text;
  if (!kept.empty()) AnyopNoteTvmFfi(kept.c_str());
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
PyObject* RegisterTorch(PyObject*, PyObject* define) {
  if (!define_recorder) {
    Py_INCREF(define);
    define_recorder = define;
  }
  return Py_BuildValue("z", AnyopRegisterTorch(LoadTorchGlue(), RaiseThroughTorch,
                                               DefineRecorder));  // None: nothing is wrong
}

// Why the operator of that name is not in torch.ops; None when it is.
PyObject* TorchProblem(PyObject*, PyObject* name) {
  const char* text = PyUnicode_AsUTF8AndSize(name, nullptr);
  if (!text) return nullptr;
  return Py_BuildValue("z", AnyopTorchProblem(text));  // None: nothing is wrong
}

// promote(name, name): torch's promotion of two dtypes; None where there is none.
PyObject* PromoteDtypes(PyObject*, PyObject* args) {
  const char *a, *b;
  if (!PyArg_ParseTuple(args, "ss", &a, &b)) return nullptr;
  const int first = DtypeFromName(a), second = DtypeFromName(b);
  const bool known = first != kAnyopNoDtype && second != kAnyopNoDtype;
  const AnyopDtype dtype = known ? Promote(first, second) : kAnyopNoDtype;
  if (dtype == kAnyopNoDtype) Py_RETURN_NONE;
  return PyUnicode_FromString(DtypeName(dtype));
}

PyObject* GetNumThreads(PyObject*, PyObject*) { return PyLong_FromLong(AnyopGetNumThreads()); }

PyObject* SetNumThreads(PyObject*, PyObject* count) {
  const long value = PyLong_Check(count) ? PyLong_AsLong(count) : -1;
  if (value == -1 && PyErr_Occurred()) PyErr_Clear();
  if (value < 1 || value > 1024) {
    PyErr_Format(PyExc_ValueError, "set_num_threads: got %R, expected an int from 1 to 1024",
                 count);
    return nullptr;
  }
  return NoneOrError(AnyopSetNumThreads(static_cast<int32_t>(value)));
}

PyMethodDef methods[] = {
    {"functions", Guarded<Functions>, METH_NOARGS, nullptr},
    {"schema", Guarded<Schema>, METH_O, nullptr},
    {"metadata", Guarded<Metadata>, METH_O, nullptr},
    {"explain", Guarded<Explain>, METH_VARARGS, nullptr},
    {"hold", Guarded<NewHeldFunction>, METH_O, nullptr},
    {"observe", Guarded<Observe>, METH_O, nullptr},
    {"kernel_calls", Guarded<KernelCalls>, METH_O, nullptr},
    {"load_library", Guarded<LoadLibrary>, METH_O, nullptr},
    {"check_library", Guarded<CheckLibrary>, METH_O, nullptr},
    {"register_tvm_ffi", Guarded<RegisterTvmFfi>, METH_O, nullptr},
    {"note_tvm_ffi", Guarded<NoteTvmFfi>, METH_O, nullptr},
    {"register_tvm_ffi_call", Guarded<RegisterTvmFfiCall>, METH_VARARGS, nullptr},
    {"register_torch", Guarded<RegisterTorch>, METH_O, nullptr},
    {"call_below_dispatcher", Guarded<CallBelowDispatcher>, METH_VARARGS, nullptr},
    {"keep_torch_error", Guarded<KeepTorchError>, METH_O, nullptr},
    {"torch_problem", Guarded<TorchProblem>, METH_O, nullptr},
    {"promote", Guarded<PromoteDtypes>, METH_VARARGS, nullptr},
    {"get_num_threads", Guarded<GetNumThreads>, METH_NOARGS, nullptr},
    {"set_num_threads", Guarded<SetNumThreads>, METH_O, nullptr},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef definition = {PyModuleDef_HEAD_INIT,
                          "anyop._anyop",
                          nullptr,
                          -1,
                          methods,
                          nullptr,
                          nullptr,
                          nullptr,
                          nullptr};

PyObject* AddException(PyObject* module, const char* name, PyObject* base, const char* doc) {
  const std::string full = std::string("anyop.") + name;
  PyObject* made = PyErr_NewExceptionWithDoc(full.c_str(), doc, base, nullptr);
  return made && PyModule_AddObjectRef(module, name, made) == 0 ? made : nullptr;
}

PyObject* MakeModule() {
  if (const char* problem = PoolError()) {
    PyErr_SetString(PyExc_ValueError, problem);
    return nullptr;
  }
  if (!RouteError().empty()) {
    PyErr_SetString(PyExc_ValueError, RouteError().c_str());
    return nullptr;
  }
  Ref module(PyModule_Create(&definition));
  if (!module) return nullptr;
  internal_error = AddException(module.get(), "InternalError", PyExc_RuntimeError,
                                "A fault of anyop's own or of a kernel; please report it.");
  device_error = AddException(module.get(), "DeviceError", PyExc_RuntimeError,
                              "A device reported an error; the text is the device's own.");
  declined_error =
      AddException(module.get(), "DeclinedError", PyExc_NotImplementedError,
                   "Raised by a kernel in Python that leaves a call to the next of the "
                   "route and has written nothing; the text says why.");
  if (!internal_error || !device_error || !declined_error) return nullptr;
  bool added = true;
  EachFramework([&](const Framework& row) {
    if (row.methods && PyModule_AddFunctions(module.get(), row.methods)) added = false;
  });
  if (!added || PyModule_AddFunctions(module.get(), routing_methods)) return nullptr;
  if (PyModule_AddFunctions(module.get(), aten_routing_methods)) return nullptr;
  if (!MakeOwnerType()) return nullptr;
  PyObject* view = MakeViewType();
  if (!view || PyModule_AddObjectRef(module.get(), "View", view)) return nullptr;
  PyObject* scope = MakeThreadScopeType();
  if (!scope || PyModule_AddObjectRef(module.get(), "ThreadScope", scope)) return nullptr;
  if (PyModule_AddFunctions(module.get(), aten_methods)) return nullptr;
  PyObject *aten = MakeAtenTensorType(), *function = MakeAtenFunctionType();
  if (!aten || !function || PyModule_AddObjectRef(module.get(), "AtenTensor", aten)) return nullptr;
  InitRouting();
  KeepEndedThreads();
  if (PyModule_AddStringConstant(module.get(), "version", AnyopVersion())) return nullptr;
  return module.Release();
}

}  // namespace
}  // namespace anyop

PyMODINIT_FUNC PyInit__anyop() { return anyop::Guarded<anyop::MakeModule>(); }
