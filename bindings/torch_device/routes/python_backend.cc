// SPDX-License-Identifier: Apache-2.0
// Calls Python functions in the place of overloads, by torch's dispatcher: this library uses no
// Python.
#include "routes/python_backend.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <anyop/aten_route.h>

#include <map>
#include <mutex>
#include <optional>
#include <set>

#include "kernels/boxed.h"
#include "routes/overlay.h"

namespace anyop::torch_device {
namespace {

using c10::IValue;
using torch::jit::Stack;
using Callee = std::optional<c10::OperatorHandle>;

std::mutex functions_mutex;
std::set<std::string> backends = {"triton", "flaggems"};
std::map<std::pair<std::string, std::string>, Callee> found;  // overload, backend

thread_local std::optional<std::string> declined;
thread_local std::set<std::pair<std::string, std::string>> running;

// Asks a function of Python's that returns a bool; false where Python is not there.
bool Ask(const char* question, Stack stack) {
  const auto op = c10::Dispatcher::singleton().findSchema({question, ""});
  if (!op) return false;
  op->callBoxed(&stack);
  return stack.back().toBool();
}

Callee Look(const std::string& overload, const std::string& backend) {
  std::string name = "anyop_python::" + overload;
  if (const auto dot = name.find('.'); dot != name.npos) name.replace(dot, 1, "__");
  return c10::Dispatcher::singleton().findSchema({name, backend});
}

Callee Find(const std::string& overload, const std::string& backend) {
  {
    const std::lock_guard lock(functions_mutex);
    const auto at = found.find({overload, backend});
    if (at != found.end()) return at->second;
  }
  Callee handle = Look(overload, backend);
  if (!handle && Ask("anyop_python::provide", {overload, backend}))
    handle = Look(overload, backend);
  const std::lock_guard lock(functions_mutex);
  return found.insert_or_assign({overload, backend}, handle).first->second;
}

struct Running {
  explicit Running(std::pair<std::string, std::string> what)
      : at(running.insert(std::move(what)).first) {}
  ~Running() { running.erase(at); }
  std::set<std::pair<std::string, std::string>>::iterator at;
};

void CallPython(const Overload& overload, const c10::OperatorHandle& callee, Stack* stack) {
  if (!overload.overlaid) return RunBoxed(overload, callee, stack);
  const at::AutoDispatchBelowADInplaceOrView below;
  callee.redispatchBoxed(c10::DispatchKeySet(overload.overlaid->key), stack);
}

}  // namespace

void AddPythonBackend(const std::string& name) {
  const int32_t status = AnyopAddAtenBackend(name.c_str());
  TORCH_CHECK_VALUE(status == kAnyopOk, AnyopLastError());
  const std::lock_guard lock(functions_mutex);
  backends.insert(name);
  found.clear();
}

bool IsPythonBackend(const std::string& name) {
  const std::lock_guard lock(functions_mutex);
  return backends.count(name) != 0;
}

bool HasPythonBackend(const std::string& name) {
  return IsPythonBackend(name) && Ask("anyop_python::has", {name});
}

void DeclinePython(const std::string& why) { declined = why; }

bool RunPython(const Overload& overload, const std::string& backend, Stack* stack,
               std::string* why) {
  if (running.count({overload.name, backend})) {
    *why = backend + " itself calls " + overload.name;
    return false;
  }
  const Callee callee = Find(overload.name, backend);
  if (!callee) {
    *why = backend + " has no " + overload.name;
    return false;
  }
  const Running now({overload.name, backend});
  Stack arguments(stack->end() - static_cast<int64_t>(overload.arguments.size()), stack->end());
  Stack called = arguments;
  declined.reset();
  try {
    CallPython(overload, *callee, &called);
  } catch (...) {
    if (!declined) throw;
    *why = backend + ": " + *declined;
    declined.reset();
    return false;
  }
  for (size_t r = 0; r < overload.written_results.size(); ++r)
    if (const int at = overload.written_results[r]; at >= 0)
      called[r] = arguments[static_cast<size_t>(at)];
  torch::jit::drop(*stack, arguments.size());
  stack->insert(stack->end(), called.begin(), called.end());
  return true;
}

}  // namespace anyop::torch_device
