// SPDX-License-Identifier: Apache-2.0
// The extension module _anyop: its exceptions, and what the package asks about operators.
#include "module.h"

#include <dlfcn.h>

#include <string>

#include "anyop/anyop.h"
#include "anyop/library_file.h"
#include "call/call.h"
#include "gil.h"
#include "objects.h"
#include "operator/registry.h"
#include "operators/python_kernel.h"
#include "python.h"
#include "tensors/dtype.h"
#include "threads/pool.h"

namespace anyop {

PyObject* internal_error = nullptr;
PyObject* device_error = nullptr;
PyObject* declined_error = nullptr;

namespace {

PyObject* Schema(Operator* op) { return PyUnicode_FromString(op->table->schema); }
PyObject* Metadata(Operator* op) { return PyUnicode_FromString(op->table->metadata); }

// load_library(path): [(namespace, name)] of its operators, those that were there already among
// them.
PyObject* LoadLibrary(const char* path) {
  if (const int32_t status = AnyopLoadLibrary(path)) return NoneOrError(status);
  void* library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
  const auto entry = reinterpret_cast<AnyopLibraryFunction>(dlsym(library, "AnyopLibraryEntry"));
  const AnyopLibrary* loaded = entry();
  dlclose(library);  // it stays: AnyopLoadLibrary has it open
  return NewList(loaded->num_ops, [&](Py_ssize_t i) {
    return Py_BuildValue("(ss)", loaded->ops[i]->name_space, loaded->ops[i]->name);
  });
}

// Raises ValueError for a library whose file is not whole, of what Python itself opens.
PyObject* CheckLibrary(const char* path) {
  char problem[1024];
  if (AnyopLibraryFileIsWhole(path, problem, sizeof problem)) Py_RETURN_NONE;
  return Raise(PyExc_ValueError, problem);
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
  if (value < 1 || value > 1024)
    return Raise(PyExc_ValueError, "set_num_threads: got %R, expected an int from 1 to 1024",
                 count);
  return NoneOrError(AnyopSetNumThreads(static_cast<int32_t>(value)));
}

PyMethodDef methods[] = {
    {"schema", Guarded<OfOperator<Schema>>, METH_O, nullptr},
    {"metadata", Guarded<OfOperator<Metadata>>, METH_O, nullptr},
    {"load_library", Guarded<OfText<LoadLibrary>>, METH_O, nullptr},
    {"check_library", Guarded<OfText<CheckLibrary>>, METH_O, nullptr},
    {"promote", Guarded<PromoteDtypes>, METH_VARARGS, nullptr},
    {"get_num_threads", Guarded<GetNumThreads>, METH_NOARGS, nullptr},
    {"set_num_threads", Guarded<SetNumThreads>, METH_O, nullptr},
    {},
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
  if (const char* problem = PoolError()) return Raise(PyExc_ValueError, problem);
  if (!RouteError().empty()) return Raise(PyExc_ValueError, RouteError());
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
  if (!ModulePart::AddAll(module.get())) return nullptr;
  KeepEndedThreads();
  if (PyModule_AddStringConstant(module.get(), "version", AnyopVersion())) return nullptr;
  return module.Release();
}

}  // namespace

Operator* FindByName(PyObject* name) {
  const char* text = PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, nullptr) : nullptr;
  if (!text) {
    if (!PyErr_Occurred()) PyErr_SetString(PyExc_TypeError, "the name of an operator is a str");
    return nullptr;
  }
  const AnyopOperator* op = AnyopFindOperator(text);
  if (!op) return Raise(PyExc_ValueError, AnyopLastError());
  return const_cast<Operator*>(reinterpret_cast<const Operator*>(op));
}

ErrorSet RaiseStatus(int32_t status, const char* message) {
  if (status == kAnyopPending || RaiseKernelError(message)) return {};
  const struct {
    int32_t status;
    PyObject* kind;
  } kinds[] = {{kAnyopValueError, PyExc_ValueError},
               {kAnyopTypeError, PyExc_TypeError},
               {kAnyopNotImplemented, PyExc_NotImplementedError},
               {kAnyopOutOfMemory, PyExc_MemoryError},
               {kAnyopDeviceError, device_error},
               {kAnyopIndexError, PyExc_IndexError},
               {kAnyopRuntimeError, PyExc_RuntimeError}};
  for (const auto& one : kinds) {
    if (one.status == status) return Raise(one.kind, message);
  }
  return Raise(internal_error, message);
}

PyObject* NoneOrError(int32_t status) {
  if (status == kAnyopOk) Py_RETURN_NONE;
  return RaiseStatus(status, AnyopLastError());
}

bool ModulePart::AddAll(PyObject* module) {
  for (const ModulePart* part = first_; part; part = part->next_) {
    if (part->methods_ && PyModule_AddFunctions(module, part->methods_)) return false;
    if (!part->type_) continue;
    PyType_Spec spec = part->spec_;
    *part->type_ = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&spec));
    if (!*part->type_ || PyModule_AddType(module, *part->type_)) return false;
  }
  return true;
}

}  // namespace anyop

PyMODINIT_FUNC PyInit__anyop() { return anyop::Guarded<anyop::MakeModule>(); }
