// SPDX-License-Identifier: Apache-2.0
// Functions of _anyop for routes: thin, the router's errors as ValueError.
#include <dlfcn.h>

#include <cstring>
#include <memory>
#include <string>

#include "gil.h"
#include "module.h"
#include "operators/python_kernel.h"
#include "router/choose/device_below.h"
#include "router/report/json.h"
#include "router/report/log.h"
#include "router/report/record.h"
#include "router/router.h"
#include "router/rules/scope.h"

namespace anyop {
namespace {

PyObject* scope_get = nullptr;  // of the context variable
PyObject* log_sink = nullptr;

// Of the router: body(&error) while other Python threads run; None, or its error.
template <typename Body>
PyObject* Try(const Body& body) {
  std::string error;
  const bool good = Unlocked([&] { return body(&error); });
  ReleaseLate();  // of what was registered until now
  if (good) Py_RETURN_NONE;
  return Raise(PyExc_ValueError, error);
}

// (operator, backend, name, source, when, device_type, priority, deterministic, resolver)
PyObject* RegisterPython(PyObject*, PyObject* args) {
  const char *backend, *own, *source, *when;
  int device, priority, deterministic;
  PyObject *name, *resolver;
  if (!PyArg_ParseTuple(args, "OsssziipO", &name, &backend, &own, &source, &when, &device,
                        &priority, &deterministic, &resolver))
    return nullptr;
  Operator* op = FindByName(name);
  if (!op) return nullptr;
  auto made = NewImplementation();
  made->backend = backend;
  made->name = own;
  made->source = source;
  made->form = "python";
  made->device_type = device;
  made->priority = priority;
  made->deterministic = deterministic;
  made->resolve = ResolveCallable;
  made->forget = ForgetCallable;
  made->resolve_context = Py_NewRef(resolver);
  return Try([&](std::string* why) { return AddImplementation(op, std::move(made), when, why); });
}

PyObject* Unregister(PyObject*, PyObject* args) {
  PyObject* name;
  const char* own;
  if (!PyArg_ParseTuple(args, "Os", &name, &own)) return nullptr;
  Operator* op = FindByName(name);
  if (!op) return nullptr;
  return Try([&](std::string* why) { return RemoveImplementation(op, own, why); });
}

// A path as the C functions take it; `none` for None. False with an error set.
bool TakePath(PyObject* path, const char* none, const char** text) {
  *text = none;
  if (path == Py_None) return true;
  Py_ssize_t size;
  *text = PyUnicode_AsUTF8AndSize(path, &size);
  if (*text && std::strlen(*text) != static_cast<size_t>(size))
    return Raise(PyExc_ValueError, "the path holds a NUL character");
  return *text;
}

// load_routes(path or None)
PyObject* Load(PyObject*, PyObject* path) {
  const char* text;
  if (!TakePath(path, nullptr, &text)) return nullptr;
  return Try([&](std::string* why) { return LoadRoutes(text, why); });
}

PyObject* Routes(PyObject*, PyObject*) {
  return NewText(Unlocked([] { return RoutesJson(); }));
}

const char* ReadinessText(const Implementation& i) {
  switch (i.readiness.load(std::memory_order_acquire)) {
    case Readiness::kReady:
      return "ready";
    case Readiness::kMissing:
      return "missing";
    default:
      return "not asked yet";
  }
}

// JSON of all implementations of an operator, the preferred first.
PyObject* Implementations(Operator* op) {
  Json json;
  json.Open('[');
  const Reading reading;
  for (const Implementation* i : Unlocked([&] { return ListImplementations(op); })) {
    const char* readiness = ReadinessText(*i);
    json.Open('{').Key("name").Text(i->name).Key("backend").Text(i->backend);
    json.Key("source").Text(i->source).Key("when").Text(i->when_text).Key("device");
    json.Text(i->device_type ? DeviceName(i->device_type) : "any");
    const int below = RunsAs(*i, kFrameworkDevice);
    json.Key("on_anyop").Text(below < 0 ? "" : DeviceName(below));
    json.Key("priority").Number(i->priority).Key("deterministic").Boolean(i->deterministic);
    json.Key("choices").Number(i->choices);
    json.Key("form").Text(i->form).Key("text").Text(i->text);
    json.Key("state").Text(readiness).Key("why").Text(readiness[0] == 'm' ? i->why : "").Close('}');
  }
  return NewText(json.Close(']').text());
}

PyObject* SetDeterminism(PyObject*, PyObject* on) {
  const int value = PyObject_IsTrue(on);
  if (value < 0) return nullptr;
  Unlocked([&] { return SetDeterministic(value != 0), 0; });
  Py_RETURN_NONE;
}

PyObject* GetDeterminism(PyObject*, PyObject*) {
  return PyBool_FromLong(Unlocked([] { return IsDeterministic(); }));
}

// ---- scopes ----

const Scope* ScopeOfThread() {
  if (IsEnding() || !PyGILState_GetThisThreadState()) return nullptr;
  const WithGil gil;
  if (!gil) return nullptr;
  const Scope* scope = nullptr;
  const Ref text(PyObject_CallObject(scope_get, nullptr));
  if (text && text.get() != Py_None) {
    const char* words = PyUnicode_AsUTF8AndSize(text.get(), nullptr);
    std::string error;
    if (words) scope = FindScope(words, &error);  // checked when it was entered
  }
  PyErr_Clear();
  return scope;
}

// The get of the context variable that holds the text of a thread's or task's scope, or None.
PyObject* SetScopeVariable(PyObject*, PyObject* get) {
  scope_get = Py_NewRef(get);
  SetScopeSource(ScopeOfThread);
  Py_RETURN_NONE;
}

PyObject* CheckScopeText(const char* words) {
  return Try([&](std::string* why) { return CheckScope(words, why); });
}

PyObject* Enter(PyObject*, PyObject*) {
  Unlocked([] { return EnterScope(), 0; });
  Py_RETURN_NONE;
}

PyObject* Leave(PyObject*, PyObject*) {
  Unlocked([] { return LeaveScope(), 0; });
  Py_RETURN_NONE;
}

// ---- log and record ----

void SayToPython(const char* text, const char* json) {
  const WithGil gil;
  if (!gil) return;
  const Ref done(PyObject_CallFunction(log_sink, "ss", text, json));
  if (!done) PyErr_Clear();  // a logger that fails stops no call
}

// set_log(level, file or None, to stderr, function(text, json) or None)
PyObject* Log(PyObject*, PyObject* args) {
  int level, to_stderr;
  const char* file;
  PyObject* sink;
  if (!PyArg_ParseTuple(args, "izpO", &level, &file, &to_stderr, &sink)) return nullptr;
  SetLogSink(nullptr);
  if (sink != Py_None) {
    log_sink = Py_NewRef(sink);
    SetLogSink(SayToPython);
  }
  return Try(
      [&](std::string* why) { return SetLog(level, file ? file : "", to_stderr != 0, why); });
}

// pause_record(on): of this thread
PyObject* Pause(PyObject*, PyObject* on) {
  const int value = PyObject_IsTrue(on);
  if (value < 0) return nullptr;
  PauseRecord(value != 0);
  Py_RETURN_NONE;
}

PyObject* Record(PyObject*, PyObject* path) {
  const char* text;
  if (!TakePath(path, "", &text)) return nullptr;
  return Try([&](std::string* why) { return SetRecord(text, why); });
}

// ---- kernels that ran ----

// The row of one kernel.
PyObject* Describe(const Implementation& i, bool is_watched) {
  const auto address = reinterpret_cast<uintptr_t>(i.run);
  Dl_info found = {};
  if (!dladdr(reinterpret_cast<void*>(address), &found)) found = {};
  const uintptr_t offset = address - reinterpret_cast<uintptr_t>(found.dli_fbase);
  const Ref calls(is_watched ? PyLong_FromLongLong(i.calls.load()) : Py_NewRef(Py_None));
  if (!calls) return nullptr;
  return Py_BuildValue("(sOKzK)", i.name.c_str(), calls.get(),
                       static_cast<unsigned long long>(address), found.dli_fname,
                       static_cast<unsigned long long>(offset));
}

// observe(name): from now on the router counts the calls that arrive at this operator's kernels,
// whichever framework they come from. Other operators pay nothing.
PyObject* Observe(Operator* op) {
  WatchOperator(op);
  Py_RETURN_NONE;
}

// kernel_calls(name): [(implementation, calls, address, library, offset)] of those that are ready;
// calls is None where the operator is not observed.
PyObject* KernelCalls(Operator* op) {
  Ref list(PyList_New(0));
  const Reading reading;
  for (const Implementation* i : ListImplementations(op)) {
    if (i->readiness.load(std::memory_order_acquire) != Readiness::kReady) continue;
    const Ref row(Describe(*i, IsWatched(op)));
    if (!list || !row || PyList_Append(list.get(), row.get())) return nullptr;
  }
  return list.Release();
}

PyMethodDef methods[] = {
    {"register_python", Guarded<RegisterPython>, METH_VARARGS, nullptr},
    {"unregister", Guarded<Unregister>, METH_VARARGS, nullptr},
    {"load_routes", Guarded<Load>, METH_O, nullptr},
    {"routes", Guarded<Routes>, METH_NOARGS, nullptr},
    {"implementations", Guarded<OfOperator<Implementations>>, METH_O, nullptr},
    {"set_deterministic", Guarded<SetDeterminism>, METH_O, nullptr},
    {"is_deterministic", Guarded<GetDeterminism>, METH_NOARGS, nullptr},
    {"set_scope_variable", Guarded<SetScopeVariable>, METH_O, nullptr},
    {"check_scope", Guarded<OfText<CheckScopeText>>, METH_O, nullptr},
    {"enter_scope", Guarded<Enter>, METH_NOARGS, nullptr},
    {"leave_scope", Guarded<Leave>, METH_NOARGS, nullptr},
    {"set_log", Guarded<Log>, METH_VARARGS, nullptr},
    {"set_record", Guarded<Record>, METH_O, nullptr},
    {"pause_record", Guarded<Pause>, METH_O, nullptr},
    {"observe", Guarded<OfOperator<Observe>>, METH_O, nullptr},
    {"kernel_calls", Guarded<OfOperator<KernelCalls>>, METH_O, nullptr},
    {},
};
const ModulePart part(methods);

}  // namespace
}  // namespace anyop
