// SPDX-License-Identifier: Apache-2.0
// Builds routes from implementations and rules, and publishes them.
#include <pthread.h>

#include <algorithm>
#include <cstring>

#include "loader.h"
#include "router/choose/capability.h"
#include "router/choose/device_below.h"
#include "router/router_state.h"
#include "router/rules/settings.h"

namespace anyop {

Router& TheRouter() {
  static auto* router = [] {
    auto* made = new Router;  // never destroyed: calls may outlive main
    // A child of fork() may not find the lock held by a thread that it has not.
    const auto unlock = [] {
      TheRouter().mutex.unlock();
      UnlockAtenWatchers();
    };
    const auto lock = [] {
      LockAtenWatchers();
      TheRouter().mutex.lock();
    };
    pthread_atfork(lock, unlock, unlock);
    return made;
  }();
  return *router;
}

Catalogue MakeCatalogue(const Router& router) {
  Catalogue catalogue;
  catalogue.aten = &router.aten.names;
  for (const auto& entry : router.states) {
    catalogue.operators.push_back(entry.first);
    for (const Implementation* i : entry.second.implementations)
      catalogue.implementations.push_back(i);
  }
  return catalogue;
}

namespace {

// "triton", "flag*": these; "!cpu": all but this.
bool IsDisabledName(const std::string& backend) {
  return IsDisabledBackend(backend,
                           [](const std::string& pattern) { return !ConcernsAtenAlone(pattern); });
}

}  // namespace

std::string Refusal(const Router& router, const Implementation& i) {
  if (IsDisabledName(i.backend)) return "is disabled by ANYOP_DISABLE";
  if (router.deterministic && !i.deterministic)
    return "does not declare determinism (anyop.use_deterministic)";
  return "";
}

namespace {

// "Any" device of what runs in Python is one that its frameworks can be handed: cpu, cuda, hip.
constexpr uint32_t kFrameworks = uint32_t{1} << 1 | uint32_t{1} << 2 | uint32_t{1} << 10;

bool IsInPython(const Implementation& i) { return i.form == "aten" || i.form == "python"; }

}  // namespace

// Compiled kernels of an extension are those of one device: "opencl", "opencl_small".
bool IsOfDeviceInUse(const Implementation& i) {
  const AnyopDevice* used = FindDevice(ANYOP_DEVICE_TYPE_EXTENSION);
  if (!i.is_own || !used) return !i.is_own;
  const size_t length = std::strlen(used->name);
  return i.backend.compare(0, length, used->name) == 0 &&
         (i.backend.size() == length || i.backend[length] == '_');
}

bool ServesItself(const Implementation& i, int device_type) {
  if (i.device_type == ANYOP_DEVICE_TYPE_EXTENSION && !IsOfDeviceInUse(i)) return false;
  if (!i.device_type && IsInPython(i) && !(kFrameworks >> device_type & 1)) return false;
  const bool at_all = i.when.devices() >> device_type & 1;
  return at_all && (i.device_type == 0 || i.device_type == device_type);
}

bool Serves(const Implementation& i, int device_type) { return RunsAs(i, device_type) >= 0; }

bool IsDisabled(const Implementation& i) { return IsDisabledName(i.backend); }

Variant MakeVariant(std::vector<const Implementation*> rest, const std::vector<std::string>& named,
                    const std::string& reason) {
  Variant variant;
  variant.reason = reason;
  variant.named = named;
  for (const std::string& text : named) {
    const auto [name, choice] = ReadAsked(text);
    for (const Implementation*& i : rest) {
      if (!i || (i->backend != name && i->name != name)) continue;
      if (choice >= i->choices) continue;
      variant.order.push_back({i, choice});
      i = nullptr;
    }
  }
  variant.listed = variant.order.size();
  for (const Implementation* i : rest) {
    if (i) variant.order.push_back({i, -1});
  }
  return variant;
}

namespace {

const OperatorVariable* FindVariable(const Operator& op) {
  for (const OperatorVariable& variable : TheSettings().operators) {
    if (Names(variable, op)) return &variable;
  }
  return nullptr;
}

// Choices are for the GPU on which they were measured; of CPUs nothing is known.
std::vector<std::string> BackendsOn(const Router& router, const Rule& rule, int device) {
  const bool fits =
      rule.machine < 0 || NearestBelow(device) <= 1 ||
      CommonName(device) == router.file.machines[static_cast<size_t>(rule.machine)].gpu;
  std::vector<std::string> backends = rule.backends;
  for (std::string& backend : backends)
    if (!fits) backend = ReadAsked(backend).name;
  return backends;
}

Variants MakeVariants(const Router& router, const State& state,
                      const std::vector<const Implementation*>& candidates, int device) {
  Variants variants;
  if (const OperatorVariable* variable = FindVariable(*state.op)) {
    variants.push_back(MakeVariant(candidates, variable->backends, variable->name));
    return variants;
  }
  for (size_t r = router.rules.size(); r-- > 0;) {
    const LoadedRule& loaded = router.rules[r];
    if (!FitsOperator(loaded.rule.pattern, *state.op)) continue;
    CallCondition when;
    const Term* at;
    std::string why;
    if (!CallCondition::Bind(*state.op, loaded.rule.when, &when, &at, &why)) continue;
    if (!(when.devices() >> device & 1)) continue;
    Variant variant =
        MakeVariant(candidates, BackendsOn(router, loaded.rule, device), loaded.reason);
    const bool last = when.Always();
    variant.when = std::move(when);
    variants.push_back(std::move(variant));
    if (last) return variants;
  }
  variants.push_back(MakeVariant(candidates, {}, "default"));
  return variants;
}

uint32_t NamedDevices(const Router& router, const State& state) {
  uint32_t devices = HasDeviceBelow() ? uint32_t{1} << kFrameworkDevice : 0;
  for (const Implementation* i : state.implementations) {
    devices |= uint32_t{1} << i->device_type;
    if (!i->device_type && IsInPython(*i)) devices |= kFrameworks;
    if (~i->when.devices()) devices |= static_cast<uint32_t>(i->when.devices());
  }
  for (const LoadedRule& loaded : router.rules) {
    for (const Term& term : loaded.rule.when) {
      for (const std::string& word : term.words) {
        if (term.name == "device") devices |= uint32_t{1} << DeviceFromName(word);
      }
    }
  }
  return devices & ~uint32_t{1};
}

// What tells one route from another.
std::string Key(const Route& route) {
  std::string key = std::to_string(reinterpret_cast<uintptr_t>(route.shortcut));
  for (int device = 0; device < kMaxDeviceTypes; ++device) {
    if (device != kUnnamed && !route.Names(device)) continue;
    for (const Variant& variant : route.On(device).variants) {
      key += ";" + std::to_string(device) + "," + variant.reason + "," + variant.when.text();
      for (const Turn& turn : variant.order) {
        key += "," + std::to_string(reinterpret_cast<uintptr_t>(turn.implementation));
        key += ":" + std::to_string(turn.choice);
      }
      key += "/" + std::to_string(variant.listed);
    }
  }
  return key;
}

void Fill(const Router& router, const State& state, Route* route) {
  route->named_devices = NamedDevices(router, state);
  route->devices.reserve(1 + static_cast<size_t>(__builtin_popcount(route->named_devices)));
  for (int device = 0; device < kMaxDeviceTypes; ++device) {
    if (device != kUnnamed && !route->Names(device)) continue;
    auto& [candidates, variants] = route->devices.emplace_back();
    for (const Implementation* i : state.implementations) {
      if (Serves(*i, device) && Refusal(router, *i).empty()) candidates.push_back(i);
    }
    if (device == kFrameworkDevice)
      std::stable_sort(candidates.begin(), candidates.end(),
                       [](const auto* a, const auto* b) { return IsNearer(*a, *b); });
    variants = MakeVariants(router, state, candidates, device);
  }
}

// What runs whatever the call on devices of this capability, where nobody watches; else nullptr.
const Turn* FindReady(const Variants& variants, int capability) {
  if (variants.empty()) return nullptr;
  const Variant& first = variants.front();
  if (!first.when.Always()) return nullptr;
  size_t at = 0;
  while (at < first.order.size() &&
         first.order[at].implementation->when.Decide(capability) == CallCondition::Decided::kNo)
    ++at;
  if (at == first.order.size()) return nullptr;
  const Implementation& i = *first.order[at].implementation;
  // A fall back is to be said; so is what is taken only because nothing better is there.
  const bool is_meant = first.named.empty() ? i.is_own || i.priority >= 0 : at < first.listed;
  const bool ready = i.readiness.load(std::memory_order_acquire) == Readiness::kReady;
  const bool always = i.when.Decide(capability) == CallCondition::Decided::kYes;
  return is_meant && ready && !i.forget && always ? &first.order[at] : nullptr;
}

bool IsAlike(const Shortcut& a, const Shortcut& b) {
  const auto is_alike = [](const Ready& x, const Ready& y) {
    return x.run == y.run && x.context == y.context && x.choice == y.choice;
  };
  return a.runs_as == b.runs_as && a.scoped == b.scoped &&
         std::equal(std::begin(a.ready), std::end(a.ready), std::begin(b.ready), is_alike);
}

// The one of that kind.
const Shortcut* FindShortcut(Router* router, State* state, const Shortcut& like) {
  const bool leads = std::any_of(std::begin(like.ready), std::end(like.ready),
                                 [](const Ready& ready) { return ready.run; });
  auto& kept = leads ? state->shortcuts : router->to_choose;
  for (const auto& shortcut : kept) {
    if (IsAlike(*shortcut, like)) return shortcut.get();
  }
  return kept.emplace_back(std::make_unique<Shortcut>(like)).get();
}

void MakeTwin(Router* router, State* state, const Route& route) {
  if (route.twin) return;
  auto twin = std::make_unique<Route>();
  twin->devices = route.devices;
  twin->named_devices = route.named_devices;
  Shortcut shortcut;
  shortcut.runs_as = route.shortcut->runs_as;
  twin->scoped = shortcut.scoped = true;
  twin->shortcut = FindShortcut(router, state, shortcut);
  route.twin = std::move(twin);
}

const Route* KeptRoute(State* state, std::unique_ptr<Route> made) {
  std::string key = Key(*made);
  const auto kept = state->routes.find(key);
  if (kept != state->routes.end()) return kept->second.get();
  return state->routes.emplace(std::move(key), std::move(made)).first->second.get();
}

// Of what is known now; kept by the state.
const Route* MakeRoute(Router* router, State* state) {
  auto made = std::make_unique<Route>();
  Fill(*router, *state, made.get());
  Shortcut shortcut;
  if (!state->watched && !(router->watch & ~uint32_t{kWatchScopes})) {
    for (int device = 0; device < kMaxDeviceTypes; ++device) {
      if (device != kUnnamed && !made->Names(device)) continue;
      const Turn* turn = FindReady(made->On(device).variants, CommonCapability(device));
      if (!turn) continue;
      const Implementation& i = *turn->implementation;
      shortcut.ready[device] = {i.run, i.context, turn->choice};
      if (device == kFrameworkDevice) shortcut.runs_as = RunsAs(i, device);
    }
  }
  made->shortcut = FindShortcut(router, state, shortcut);
  const Route* route = KeptRoute(state, std::move(made));
  if (router->watch & kWatchScopes) MakeTwin(router, state, *route);
  return route;
}

}  // namespace

void MakeTwins(Router* router) {
  for (auto& entry : router->states) MakeTwin(router, &entry.second, *entry.second.route);
}

void Show(const Router& router, State* state) {
  const bool scoped = router.watch & kWatchScopes;
  const Route* route = scoped ? state->route->twin.get() : state->route;
  state->op->route.store(route, std::memory_order_seq_cst);
  state->op->shortcut.store(route->shortcut, std::memory_order_release);
}

void Publish(Router* router, State* state) {
  state->route = MakeRoute(router, state);
  Show(*router, state);
}

void PublishAll(Router* router) {
  for (auto& entry : router->states) entry.second.next = MakeRoute(router, &entry.second);
  for (auto& entry : router->states) {
    entry.second.route = entry.second.next;
    Show(*router, &entry.second);
  }
}

}  // namespace anyop
