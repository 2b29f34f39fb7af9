// SPDX-License-Identifier: Apache-2.0
// Finds what variables and rules say of an overload of ATen's, and tells who watches of changes.
#include "router/rules/aten_routes.h"

#include <algorithm>
#include <mutex>
#include <utility>

#include "router/router_state.h"
#include "router/rules/settings.h"

namespace anyop {
namespace {

using Watcher = std::pair<void (*)(void*), void*>;

std::mutex watch_mutex;  // held while they are told, so that who is told last sees the last rules
std::vector<Watcher>& Watchers(Watched what) {
  static auto* watchers = new std::vector<Watcher>[2];
  return watchers[static_cast<int>(what)];
}

bool NamesOverload(const OperatorVariable& variable, const std::string& overload) {
  const std::string packet = overload.substr(0, overload.find('.'));
  const std::string wanted = variable.encoded.substr(sizeof "ATEN__" - 1);
  return wanted == EncodeName(packet) || wanted == EncodeName(overload) ||
         (packet == overload && wanted == EncodeName(overload + ".default"));
}

// That of the overload before that of all overloads of its name.
const OperatorVariable* FindVariable(const std::string& overload) {
  const OperatorVariable* found = nullptr;
  for (const OperatorVariable& variable : TheSettings().operators) {
    if (!IsAtenVariable(variable) || !NamesOverload(variable, overload)) continue;
    if (!found || variable.encoded.size() > found->encoded.size()) found = &variable;
  }
  return found;
}

bool IsDisabled(const std::string& backend, const AtenNames& names) {
  return backend != "none" &&
         IsDisabledBackend(DisabledAs(backend), [&](const std::string& pattern) {
           return ConcernsAten(pattern, names);
         });
}

void Fill(AtenRoutes* aten, const std::vector<std::string>& named, const std::string& reason,
          AnyopAtenRouting* routing) {
  std::string backends, disabled;
  for (const std::string& name : named) {
    std::string& list = IsDisabled(name, aten->names) ? disabled : backends;
    list += (list.empty() ? "" : ",") + PlainAtenBackend(name);
  }
  const auto keep = [&](const std::string& text) {
    return aten->texts.insert(text).first->c_str();
  };
  routing->is_default = named.empty();
  routing->backends = keep(backends);
  routing->disabled = keep(disabled);
  routing->reason = keep(reason);
}

std::string UnknownVariable(const OperatorVariable& variable, const AtenNames& names) {
  std::vector<std::string> known;
  for (const std::string& name : names.overloads)
    known.push_back("ANYOP_OP_ATEN__" + EncodeName(name));
  const std::string nearest = Nearest("ANYOP_OP_" + variable.encoded, known);
  return variable.name + " names no overload of ATen's that can be routed" +
         (nearest.empty() ? "" : "; did you mean '" + nearest + "'?");
}

}  // namespace

bool HasAtenVariable(const std::string& overload) { return FindVariable(overload) != nullptr; }

const LoadedRule* FindAtenRule(const AtenRoutes& aten, const std::string& overload,
                               const std::string& device) {
  for (size_t r = aten.rules.size(); r-- > 0;) {
    const Rule& rule = aten.rules[r].rule;
    if (HoldsOn(device, rule.when) && FitsOverload(rule.pattern, overload)) return &aten.rules[r];
  }
  return nullptr;
}

std::string CheckAtenVariables(const Settings& settings, const AtenNames& names) {
  for (const OperatorVariable& variable : settings.operators) {
    if (!IsAtenVariable(variable)) continue;
    for (const std::string& backend : variable.backends) {
      if (!IsKnownAtenBackend(backend, names))
        return variable.name + ": " + UnknownAtenBackend(backend, names);
    }
    const std::string wrong = WrongOrder(variable.backends);
    if (!wrong.empty()) return variable.name + ": " + wrong;
    const auto& all = names.overloads;
    const auto fits = [&](const std::string& name) { return NamesOverload(variable, name); };
    if (!all.empty() && std::none_of(all.begin(), all.end(), fits))
      return UnknownVariable(variable, names);
  }
  return "";
}

bool SetAtenOverloads(std::vector<std::string> overloads, std::string* error) {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  AtenNames names = {std::move(overloads), router.aten.names.backends};
  *error = CheckAtenVariables(TheSettings(), names);
  if (!error->empty()) return false;
  for (const LoadedRule& loaded : router.aten.rules) {
    if (!CheckAtenRule(router.file, loaded.rule, names, error)) return false;
  }
  router.aten.names = std::move(names);
  return true;
}

void AddAtenBackend(const std::string& name) {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  AtenNames& names = router.aten.names;
  if (!IsKnownAtenBackend(name, names)) names.backends.push_back(name);
}

bool IsAtenBackendDisabled(const std::string& backend) {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  return IsDisabled(backend, router.aten.names);
}

void FindAtenRoute(const std::string& overload, const std::string& device,
                   AnyopAtenRouting* routing) {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  if (const OperatorVariable* variable = FindVariable(overload)) {
    Fill(&router.aten, variable->backends, variable->name, routing);
  } else if (const LoadedRule* loaded = FindAtenRule(router.aten, overload, device)) {
    Fill(&router.aten, loaded->rule.backends, loaded->reason, routing);
  } else {
    Fill(&router.aten, {}, "default", routing);
  }
}

void WatchAten(Watched what, void (*changed)(void*), void* context) {
  const std::lock_guard<std::mutex> lock(watch_mutex);
  const Watcher watcher = {changed, context};
  std::vector<Watcher>& all = Watchers(what);
  if (std::find(all.begin(), all.end(), watcher) == all.end()) all.push_back(watcher);
}

void TellAtenWatchers(Watched what) {
  const std::lock_guard<std::mutex> lock(watch_mutex);
  for (const Watcher& watcher : Watchers(what)) watcher.first(watcher.second);
}

void LockAtenWatchers() { watch_mutex.lock(); }
void UnlockAtenWatchers() { watch_mutex.unlock(); }

}  // namespace anyop
