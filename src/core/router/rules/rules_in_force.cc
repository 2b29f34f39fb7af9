// SPDX-License-Identifier: Apache-2.0
// Rules in force: of the environment, of files and of scopes.
#include <algorithm>

#include "anyop/anyop.h"
#include "call/check_call.h"
#include "router/choose/capability.h"
#include "router/choose/device_below.h"
#include "router/report/log.h"
#include "router/report/record.h"
#include "router/router_state.h"
#include "router/rules/scope.h"
#include "router/rules/settings.h"

namespace anyop {
namespace {

struct Rules {
  std::vector<LoadedRule> of_operators, of_aten;
  RouteFile file;
};

// Those that were measured by another anyop.
void DropOldChoices(RouteFile* file) {
  for (Rule& rule : file->rules) {
    if (rule.machine < 0) continue;
    const Machine& machine = file->machines[static_cast<size_t>(rule.machine)];
    for (std::string& backend : rule.backends) {
      const Asked asked = ReadAsked(backend);
      if (asked.choice < 0 || machine.version == AnyopVersion()) continue;
      LogFallbackOnce(PlaceText(*file, machine.place) + "measured by anyop " + machine.version +
                      ", and this is " + AnyopVersion() +
                      ": its choices are not used; run anyop tune again");
      backend = asked.name;
    }
  }
}

Rules SortRules(RouteFile file) {
  Rules sorted;
  for (const Rule& rule : file.rules) {
    auto& rules = IsAten(rule.pattern) ? sorted.of_aten : sorted.of_operators;
    rules.push_back({rule, file.files[static_cast<size_t>(rule.place.file)] + ":" +
                               std::to_string(rule.place.line)});
  }
  sorted.file = std::move(file);
  return sorted;
}

void SwapRules(Router* router, Rules* rules) {
  std::swap(router->rules, rules->of_operators);
  std::swap(router->aten.rules, rules->of_aten);
  std::swap(router->file, rules->file);
}

}  // namespace

std::string StartRouter() {
  const Settings& settings = TheSettings();
  checks_calls = settings.checks_calls;
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

bool LoadRoutes(const char* path, std::string* error) {
  RouteFile file;
  std::string unread;
  if (path) ReadRouteFile(path, &file, &unread);
  Router& router = TheRouter();
  std::unique_lock<std::mutex> lock(router.mutex);
  CheckRules(file, MakeCatalogue(router), error);
  *error = unread + (unread.empty() || error->empty() ? "" : "\n") + *error;
  if (!error->empty()) return false;
  DropOldChoices(&file);
  Rules rules = SortRules(std::move(file));
  SwapRules(&router, &rules);
  try {
    PublishAll(&router);
  } catch (...) {
    SwapRules(&router, &rules);
    throw;
  }
  ReportOtherMachines(router);
  lock.unlock();
  TellAtenWatchers(Watched::kRules);
  return true;
}

namespace {

void ReportOtherMachines(const Router& router, const std::string& here) {
  for (const LoadedRule& loaded : router.rules) {
    if (loaded.rule.machine < 0) continue;
    const Machine& machine = router.file.machines[static_cast<size_t>(loaded.rule.machine)];
    const auto& backends = loaded.rule.backends;
    const bool chooses = std::any_of(backends.begin(), backends.end(),
                                     [](const auto& text) { return ReadAsked(text).choice >= 0; });
    if (chooses && machine.gpu != here)
      LogFallbackOnce(PlaceText(router.file, machine.place) + "measured on " + machine.gpu +
                      ", and this is " + here + ": its choices are not used; run anyop tune again");
  }
}

}  // namespace

void ReportOtherMachines(const Router& router) {
  for (int device = 2; device < kMaxDeviceTypes; ++device) {  // of CPUs nothing is known
    const std::string here = device == kFrameworkDevice ? "" : CommonName(device);
    if (!here.empty()) ReportOtherMachines(router, here);
  }
}

void SetDeterministic(bool on) {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  PublishWith(&router.deterministic, on, [&] { PublishAll(&router); });
}

bool IsDeterministic() {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  return router.deterministic;
}

bool CheckScope(const std::string& text, std::string* error) {
  const Scope* scope = FindScope(text, error);
  if (!scope) return false;
  for (const std::string& pattern : scope->patterns) {
    if (!IsAten(pattern)) continue;
    *error =
        "'" + pattern.substr(0, 60) +
        "' is ATen's, which anyop.use does not reach: route it by a rule in a route file or by "
        "anyop.torch.device.set_route";
    return false;
  }
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  const Catalogue catalogue = MakeCatalogue(router);
  for (const auto& backends : scope->backends) {
    for (const std::string& backend : backends) {
      if (IsKnownBackend(backend, catalogue)) continue;
      *error = UnknownBackend(backend, catalogue);
      return false;
    }
  }
  for (const std::string& pattern : scope->patterns) {
    const auto fits = [&](const Operator* op) { return FitsOperator(pattern, *op); };
    if (std::any_of(catalogue.operators.begin(), catalogue.operators.end(), fits)) continue;
    *error = UnknownOperator(pattern, catalogue);
    return false;
  }
  scope->checked = true;
  return true;
}

const Scope* UseScope(std::string_view text, std::string* error) {
  const Scope* scope = FindScope(text, error);
  if (!scope || scope->checked.load(std::memory_order_relaxed)) return scope;
  return CheckScope(scope->text, error) ? scope : nullptr;
}

const Variants* VariantsInScope(const Operator* op, const Route& route, const Scope& scope,
                                int device_type) {
  const int rule = RuleInScope(scope, *op);
  if (rule < 0) return nullptr;
  const int device = route.Names(device_type) ? device_type : kUnnamed;
  const std::lock_guard<std::mutex> lock(route.mutex);
  const std::pair<const Scope*, int> key(&scope, device);
  const auto kept = route.in_scope.find(key);
  if (kept != route.in_scope.end()) return kept->second.get();
  // Of the route alone, which may be taken up again when others have come and gone.
  auto made = std::make_unique<Variants>();
  made->push_back(MakeVariant(route.On(device).candidates,
                              scope.backends[static_cast<size_t>(rule)],
                              "anyop.use('" + scope.text + "')"));
  return route.in_scope.emplace(key, std::move(made)).first->second.get();
}

std::string WhyNotRouted(const Implementation& i, int device_type) {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  std::string refusal = Refusal(router, i);
  if (!refusal.empty()) return refusal;
  if (Serves(i, device_type)) return "";
  std::string serves = i.device_type ? DeviceName(i.device_type) : i.when_text;
  if (serves.empty()) serves = "cpu, cuda and hip";
  return "serves " + serves + ", and the tensors are on " + DeviceName(device_type);
}

}  // namespace anyop
