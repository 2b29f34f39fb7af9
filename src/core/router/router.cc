// SPDX-License-Identifier: Apache-2.0
// Builds routes from implementations and rules, and publishes them.
#include "router.h"

#include <algorithm>
#include <cstring>

#include "json.h"
#include "log.h"
#include "record.h"
#include "scope.h"
#include "settings.h"

namespace anyop {
namespace {

// One operator: its implementations, and every route it ever had, by what is in them.
struct State {
  Operator* op;
  std::vector<Implementation*> implementations;  // that may run, the preferred first
  std::map<std::string, std::unique_ptr<Route>> routes;
  const Route* route = nullptr;  // of now
  bool watched = false;
};

struct Router {
  std::mutex mutex;
  std::map<const Operator*, State> states;
  std::vector<std::unique_ptr<Implementation>> all;  // those that were removed too
  std::vector<LoadedRule> rules;                     // of the route file
  RouteFile file;
  std::map<std::string, Resolve> providers;
  void (*add_late)() = nullptr;
  bool deterministic = false;
  uint32_t watch = 0;
};

Router& TheRouter() {
  static auto* router = new Router;  // never destroyed: calls may outlive main
  return *router;
}

// "triton", "flag*": these; "!cpu": all but this.
bool IsDisabledName(const std::string& backend) {
  bool others = false, kept = false;
  for (const std::string& pattern : TheSettings().disabled) {
    if (pattern[0] != '!' && FitsPattern(pattern, backend)) return true;
    others |= pattern[0] == '!';
    kept |= pattern[0] == '!' && FitsPattern(pattern.substr(1), backend);
  }
  return others && !kept;
}

// Why no route may lead to it, whatever the call.
std::string Refusal(const Router& router, const Implementation& i) {
  if (IsDisabledName(i.backend)) return "is disabled by ANYOP_DISABLE";
  if (router.deterministic && !i.deterministic)
    return "does not declare determinism (anyop.use_deterministic)";
  return "";
}

bool Serves(const Implementation& i, int device_type) {
  const bool at_all = i.when.devices() >> device_type & 1;
  return at_all && (i.device_type == 0 || i.device_type == device_type);
}

// ---- one route ----

Variant MakeVariant(const Router& router, const State& state, int device,
                    const std::vector<std::string>& named, const std::string& reason) {
  Variant variant;
  variant.reason = reason;
  variant.named = named;
  std::vector<const Implementation*> rest;
  for (const Implementation* i : state.implementations) {
    if (Serves(*i, device) && Refusal(router, *i).empty()) rest.push_back(i);
  }
  for (const std::string& name : named) {
    for (const Implementation*& i : rest) {
      if (!i || (i->backend != name && i->name != name)) continue;
      variant.order.push_back(i);
      i = nullptr;
    }
  }
  variant.listed = variant.order.size();
  for (const Implementation* i : rest) {
    if (i) variant.order.push_back(i);
  }
  return variant;
}

const OperatorVariable* FindVariable(const Operator& op) {
  for (const OperatorVariable& variable : TheSettings().operators) {
    if (Names(variable, op)) return &variable;
  }
  return nullptr;
}

// Behind the devices that are named, 0 stands for all others.
constexpr int kUnnamed = 0;

Variants MakeVariants(const Router& router, const State& state, int device) {
  Variants variants;
  if (const OperatorVariable* variable = FindVariable(*state.op)) {
    variants.push_back(MakeVariant(router, state, device, variable->backends, variable->name));
    return variants;
  }
  for (size_t r = router.rules.size(); r-- > 0;) {
    const LoadedRule& loaded = router.rules[r];
    if (!FitsOperator(loaded.rule.pattern, *state.op)) continue;
    When when;
    const Term* at;
    std::string why;
    if (!When::Bind(*state.op, loaded.rule.when, &when, &at, &why)) continue;
    if (!(when.devices() >> device & 1)) continue;
    Variant variant = MakeVariant(router, state, device, loaded.rule.backends, loaded.reason);
    const bool last = when.Always();
    variant.when = std::move(when);
    variants.push_back(std::move(variant));
    if (last) return variants;
  }
  variants.push_back(MakeVariant(router, state, device, {}, "default"));
  return variants;
}

uint32_t NamedDevices(const Router& router, const State& state) {
  uint32_t devices = 0;
  for (const Implementation* i : state.implementations) devices |= uint32_t{1} << i->device_type;
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
  std::string key;
  for (int device = 0; device < kMaxDeviceTypes; ++device) {
    for (const Variant& variant : route.variants[device]) {
      key += std::to_string(device) + "," + variant.reason + "," + variant.when.text();
      for (const Implementation* i : variant.order)
        key += "," + std::to_string(reinterpret_cast<uintptr_t>(i));
      key += "/" + std::to_string(variant.listed);
    }
    if (route.ready[device].run) key += "!";
  }
  return key;
}

void Fill(const Router& router, const State& state, Route* route) {
  route->named_devices = NamedDevices(router, state);
  for (int device = 0; device < kMaxDeviceTypes; ++device) {
    if (device == kUnnamed || route->named_devices >> device & 1)
      route->variants[device] = MakeVariants(router, state, device);
  }
}

// What runs whatever the call, where nobody watches.
Route::Ready FindReady(const Variants& variants) {
  if (variants.empty()) return {};
  const Variant& first = variants.front();
  if (!first.when.Always() || first.order.empty()) return {};
  const Implementation& i = *first.order.front();
  // A fall back is to be said; so is what is taken only because nothing better is there.
  const bool is_meant = first.named.empty() ? i.is_own || i.priority >= 0 : first.listed > 0;
  const bool ready = i.readiness.load(std::memory_order_acquire) == Readiness::kReady;
  return is_meant && ready && i.when.Always() ? Route::Ready{i.run, i.context} : Route::Ready{};
}

void Show(const Router& router, State* state) {
  const bool scoped = router.watch & kWatchScopes;
  const Route* route = scoped ? state->route->twin.get() : state->route;
  state->op->route.store(route, std::memory_order_release);
}

void Publish(Router* router, State* state) {
  auto made = std::make_unique<Route>();
  Fill(*router, *state, made.get());
  if (!state->watched && !(router->watch & ~uint32_t{kWatchScopes})) {
    for (int device = 0; device < kMaxDeviceTypes; ++device)
      made->ready[device] = FindReady(made->variants[device]);
  }
  std::unique_ptr<Route>& kept = state->routes[Key(*made)];
  if (!kept) {
    auto twin = std::make_unique<Route>();
    Fill(*router, *state, twin.get());
    twin->scoped = true;
    made->twin = std::move(twin);
    kept = std::move(made);
  }
  state->route = kept.get();
  Show(*router, state);
}

void PublishAll(Router* router) {
  for (auto& entry : router->states) Publish(router, &entry.second);
}

// ---- implementations ----

void Insert(State* state, Implementation* added) {
  auto& list = state->implementations;
  list.erase(std::remove_if(list.begin(), list.end(),
                            [&](Implementation* i) { return i->name == added->name; }),
             list.end());
  const auto at = std::find_if(list.begin(), list.end(),
                               [&](Implementation* i) { return i->priority < added->priority; });
  list.insert(at, added);
}

bool BindWhen(const char* when, Implementation* made, std::string* error) {
  std::vector<Term> terms;
  const Term* at;
  made->when_text = when ? when : "";
  if (ParseCondition(made->when_text, &terms, error) &&
      When::Bind(*made->op, terms, &made->when, &at, error))
    return true;
  *error = made->op->name + ": when of " + made->name + ": " + *error;
  return false;
}

// Fields that a record of an older library lacks read as 0.
AnyopKernelEntry WholeEntry(const AnyopOp* table, uint32_t i) {
  AnyopKernelEntry entry = {};
  const char* at = reinterpret_cast<const char*>(table->kernels) + size_t{i} * table->kernel_size;
  std::memcpy(&entry, at, std::min<size_t>(table->kernel_size, sizeof entry));
  return entry;
}

std::unique_ptr<Implementation> FromEntry(const Operator* op, const AnyopKernelEntry& entry) {
  auto made = std::make_unique<Implementation>();
  made->op = op;
  made->backend = entry.backend;
  made->name = entry.name ? entry.name : entry.backend;
  made->source = entry.source ? entry.source : "";
  made->form = entry.form ? entry.form : "";
  made->text = entry.text ? entry.text : "";
  made->device_type = entry.device_type;
  made->priority = entry.priority;
  made->deterministic = entry.flags & kAnyopDeterministic;
  made->is_own = entry.run != nullptr;
  made->run = entry.run;
  if (entry.run) made->readiness = Readiness::kReady;
  return made;
}

Catalogue MakeCatalogue(const Router& router) {
  Catalogue catalogue;
  for (const auto& entry : router.states) {
    catalogue.operators.push_back(entry.first);
    for (const Implementation* i : entry.second.implementations)
      catalogue.implementations.push_back(i);
  }
  return catalogue;
}

void SetRules(Router* router, RouteFile file) {
  router->rules.clear();
  for (const Rule& rule : file.rules) {
    router->rules.push_back({rule, file.files[static_cast<size_t>(rule.place.file)] + ":" +
                                       std::to_string(rule.place.line)});
  }
  router->file = std::move(file);
}

}  // namespace

void AddToRouter(Operator* op) {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  State& state = router.states[op];
  state.op = op;
  for (uint32_t i = 0; i < op->table->num_kernels; ++i) {
    const AnyopKernelEntry entry = WholeEntry(op->table, i);
    if (entry.device_type < 0 || entry.device_type >= kMaxDeviceTypes || !entry.backend ||
        (!entry.run && !entry.form))
      continue;
    auto made = FromEntry(op, entry);
    std::string why;
    if (!BindWhen(entry.when, made.get(), &why)) {
      made->readiness = Readiness::kMissing;
      made->why = "its condition cannot be read: " + why;
    }
    Insert(&state, made.get());
    router.all.push_back(std::move(made));
  }
  Publish(&router, &state);
}

std::string StartRouter() {
  const Settings& settings = TheSettings();
  std::string error;
  if (!SetLog(settings.log_level, settings.log_file, true, &error))
    return "ANYOP_LOG_FILE: " + error;
  if (!SetRecord(settings.record_file, &error)) return "ANYOP_RECORD: " + error;
  if (!settings.routes.empty() && !LoadRoutes(settings.routes.c_str(), &error))
    return "ANYOP_ROUTES: " + error;
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  return CheckVariables(settings, MakeCatalogue(router));
}

void ReportMissingOperators() {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  const Catalogue catalogue = MakeCatalogue(router);
  RouteFile file = router.file;
  const auto is_there = [&](const std::string& space) {
    return std::any_of(catalogue.operators.begin(), catalogue.operators.end(),
                       [&](const Operator* op) { return space == op->table->name_space; });
  };
  file.later.erase(std::remove_if(file.later.begin(), file.later.end(), is_there),
                   file.later.end());
  std::string error;
  if (file.later.size() < router.file.later.size() && !CheckRules(file, catalogue, &error))
    std::fprintf(stderr, "anyop: %s\n", error.c_str());
}

bool AddImplementation(Operator* op, std::unique_ptr<Implementation> made, const char* when,
                       std::string* error) {
  made->op = op;
  if (made->device_type < 0 || made->device_type >= kMaxDeviceTypes) {
    *error = op->name + ": device type " + std::to_string(made->device_type) + " is none";
    return false;
  }
  if (!BindWhen(when, made.get(), error)) return false;
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  State& state = router.states[op];
  Insert(&state, made.get());
  router.all.push_back(std::move(made));
  Publish(&router, &state);
  return true;
}

bool RemoveImplementation(Operator* op, const std::string& name, std::string* error) {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  State& state = router.states[op];
  auto& list = state.implementations;
  const auto found = std::find_if(list.begin(), list.end(),
                                  [&](Implementation* i) { return i->name == name && !i->is_own; });
  if (found == list.end()) {
    *error = op->name + " has no implementation '" + name + "' that was registered";
    return false;
  }
  list.erase(found);
  Publish(&router, &state);
  return true;
}

bool LoadRoutes(const char* path, std::string* error) {
  RouteFile file;
  if (path && !ReadRouteFile(path, &file, error)) return false;
  Router& router = TheRouter();
  std::unique_lock<std::mutex> lock(router.mutex);
  if (!CheckRules(file, MakeCatalogue(router), error)) {
    lock.unlock();
    if (!AddLateBackends()) return false;
    lock.lock();  // one of them may be what was missing
    if (!CheckRules(file, MakeCatalogue(router), error)) return false;
  }
  SetRules(&router, std::move(file));
  PublishAll(&router);
  return true;
}

void SetDeterministic(bool on) {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  router.deterministic = on;
  PublishAll(&router);
}

bool IsDeterministic() {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  return router.deterministic;
}

void SetProvider(const std::string& form, Resolve resolve) {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  router.providers[form] = resolve;
}

void SetLateBackends(void (*add)()) {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  router.add_late = add;
}

bool AddLateBackends() {
  Router& router = TheRouter();
  void (*add)() = nullptr;
  {
    const std::lock_guard<std::mutex> lock(router.mutex);
    std::swap(add, router.add_late);
  }
  if (add) add();
  return add != nullptr;
}

void SetWatch(Watch what, bool on) {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  router.watch = on ? router.watch | what : router.watch & ~uint32_t{what};
  for (auto& entry : router.states) {
    if (what == kWatchScopes) {
      Show(router, &entry.second);  // with scopes or without, all is made
    } else {
      Publish(&router, &entry.second);
    }
  }
}

void WatchOperator(Operator* op) {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  State& state = router.states[op];
  state.watched = true;
  Publish(&router, &state);
}

bool IsWatched(const Operator* op) {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  return router.states[op].watched;
}

void MakeReady(const Implementation* implementation) {
  Router& router = TheRouter();
  Resolve resolve = implementation->resolve;
  if (!resolve) {
    const std::lock_guard<std::mutex> lock(router.mutex);
    const auto provider = router.providers.find(implementation->form);
    if (provider != router.providers.end()) resolve = provider->second;
  }
  AnyopKernel run = nullptr;
  void* context = nullptr;
  std::string why = "kernels of the form " + implementation->form + " need Python with anyop";
  const bool made = resolve && resolve(*implementation, &run, &context, &why);
  const std::lock_guard<std::mutex> lock(router.mutex);
  auto* mine = const_cast<Implementation*>(implementation);
  if (mine->readiness.load() != Readiness::kUnresolved) return;
  mine->run = run;
  mine->context = context;
  mine->why = made ? "" : why;
  mine->readiness.store(made ? Readiness::kReady : Readiness::kMissing, std::memory_order_release);
  State& state = router.states[mine->op];
  Publish(&router, &state);
}

std::vector<const Implementation*> ListImplementations(const Operator* op) {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  const auto& list = router.states[op].implementations;
  return {list.begin(), list.end()};
}

bool CheckScope(const std::string& text, std::string* error) {
  const Scope* scope = FindScope(text, error);
  if (!scope) return false;
  const auto is_known = [](const std::string& backend, std::string* why) {
    Router& router = TheRouter();
    const std::lock_guard<std::mutex> lock(router.mutex);
    const Catalogue catalogue = MakeCatalogue(router);
    *why = UnknownBackend(backend, catalogue);
    return IsKnownBackend(backend, catalogue);
  };
  for (const auto& backends : scope->backends) {
    for (const std::string& backend : backends) {
      if (!is_known(backend, error) && !(AddLateBackends() && is_known(backend, error)))
        return false;
    }
  }
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  const Catalogue catalogue = MakeCatalogue(router);
  for (const std::string& pattern : scope->patterns) {
    const auto fits = [&](const Operator* op) { return FitsOperator(pattern, *op); };
    if (std::any_of(catalogue.operators.begin(), catalogue.operators.end(), fits)) continue;
    *error = UnknownOperator(pattern, catalogue);
    return false;
  }
  return true;
}

const Variants* VariantsInScope(const Operator* op, const Route& route, const Scope& scope,
                                int device_type) {
  const int rule = RuleInScope(scope, *op);
  if (rule < 0) return nullptr;
  const int device = route.named_devices >> device_type & 1 ? device_type : kUnnamed;
  const std::lock_guard<std::mutex> reading(route.mutex);
  std::unique_ptr<Variants>& kept = route.in_scope[{&scope, device}];
  if (!kept) {
    Router& router = TheRouter();
    const std::lock_guard<std::mutex> lock(router.mutex);
    const size_t at = static_cast<size_t>(rule);
    kept = std::make_unique<Variants>();
    kept->push_back(MakeVariant(router, router.states[op], device, scope.backends[at],
                                "anyop.use('" + scope.text + "')"));
  }
  return kept.get();
}

bool IsDisabled(const Implementation& i) { return IsDisabledName(i.backend); }

std::string WhyNotRouted(const Implementation& i, int device_type) {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  const std::string refusal = Refusal(router, i);
  if (!refusal.empty()) return refusal;
  if (Serves(i, device_type)) return "";
  const std::string serves = i.device_type ? DeviceName(i.device_type) : i.when_text;
  return "serves " + serves + ", and the tensors are on " + DeviceName(device_type);
}

std::string RoutesJson() {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  Json json;
  json.Open('{').Key("deterministic").Boolean(router.deterministic).Key("files").Open('[');
  for (const std::string& file : router.file.files) json.Text(file);
  json.Close(']').Key("rules").Open('[');
  for (const LoadedRule& loaded : router.rules) {
    json.Open('{').Key("pattern").Text(loaded.rule.pattern).Key("reason").Text(loaded.reason);
    json.Key("backends").Open('[');
    for (const std::string& backend : loaded.rule.backends) json.Text(backend);
    json.Close(']').Key("when").Text(ConditionText(loaded.rule.when)).Close('}');
  }
  json.Close(']').Key("variables").Open('[');
  for (const OperatorVariable& variable : TheSettings().operators) json.Text(variable.name);
  json.Close(']').Key("disabled").Open('[');
  for (const std::string& name : TheSettings().disabled) json.Text(name);
  return json.Close(']').Close('}').text();
}

}  // namespace anyop
