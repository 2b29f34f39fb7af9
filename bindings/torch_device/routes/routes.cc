// SPDX-License-Identifier: Apache-2.0
// Keeps the routes of overloads by the router's rules, and runs calls that need more than a look.
#include "routes/routes.h"

#include <ATen/native/CPUFallback.h>
#include <anyop/aten_route.h>

#include <map>
#include <mutex>
#include <sstream>

#include "kernels/boxed.h"
#include "platform/platform.h"
#include "routes/native.h"
#include "routes/overlay.h"
#include "routes/python_backend.h"

namespace anyop::torch_device {
namespace {

// By RouteKind; Python's backends have names of their own.
constexpr const char* kNames[] = {"aten", "native", "cpu_fallback", "none"};

// Bits of Overload::attention.
enum Attention : uint32_t { kRouted = 1, kWatched = 2 };

std::mutex routes_mutex;  // of changes
std::atomic<bool> counting{false};
const int32_t* log_level = nullptr;

std::optional<Link> LinkOf(const std::string& given) {
  const std::string name = given == "boxed" ? kNames[0] : given;  // as it was called
  for (int kind = 0; kind <= static_cast<int>(RouteKind::kNone); ++kind)
    if (name == kNames[kind]) return Link{static_cast<RouteKind>(kind), name};
  return IsPythonBackend(name) ? std::optional<Link>({RouteKind::kPython, name}) : std::nullopt;
}

// "native, aten", as users write it.
std::vector<std::string> Names(const std::string& backends) {
  std::vector<std::string> names;
  std::istringstream words(backends);
  for (std::string word; std::getline(words, word, ',');) {
    const auto begin = word.find_first_not_of(' '), end = word.find_last_not_of(' ');
    if (begin != std::string::npos) names.push_back(word.substr(begin, end - begin + 1));
  }
  return names;
}

std::vector<Link> ParseChain(const std::string& backends) {
  std::vector<Link> chain;
  for (const std::string& name : Names(backends)) {
    const auto link = LinkOf(name);
    TORCH_CHECK_VALUE(link, "'", name,
                      "' is no backend of ATen's overloads, expected native, aten, "
                      "cpu_fallback, none, triton, flaggems or one that was registered");
    chain.push_back(*link);
  }
  return chain;
}

// Whether torch's own kernel can run: of the inner device, or the one that an overlay lies over.
bool HasBoxed(const Overload& overload) { return overload.overlaid || platform->boxed; }

void Publish(Overload* overload, OverloadRoute route) {
  const bool plain = route.chain.front().kind == RouteKind::kBoxed && HasBoxed(*overload);
  // Routes are few and small: those no longer in force stay for the calls that read them.
  overload->route.store(new OverloadRoute(std::move(route)), std::memory_order_release);
  const bool watched =
      counting.load() || (log_level && __atomic_load_n(log_level, __ATOMIC_RELAXED));
  overload->attention.store((plain ? 0u : kRouted) | (watched ? kWatched : 0u));
}

// Where nobody says anything, or nothing is left of what is said.
OverloadRoute DefaultRoute(const Overload& overload) {
  if (HasBoxed(overload) && !AnyopAtenIsDisabled("aten"))
    return {ParseChain("aten"), "default", true};
  if (!AnyopAtenIsDisabled("cpu_fallback")) return {ParseChain("cpu_fallback"), "default", true};
  return {ParseChain("none"), "ANYOP_DISABLE", true};
}

OverloadRoute RuledRoute(const Overload& overload) {
  AnyopAtenRouting routing = {};
  routing.size = sizeof routing;
  const char* device = overload.overlaid ? overload.overlaid->device.c_str() : "anyop";
  const int32_t status = AnyopAtenRoute(overload.name.c_str(), device, &routing);
  if (status != kAnyopOk || routing.is_default) return DefaultRoute(overload);
  OverloadRoute route{{}, routing.reason, false};
  for (const std::string& name : Names(routing.backends))
    if (const auto link = LinkOf(name)) route.chain.push_back(*link);
  if (route.chain.empty()) route.chain = DefaultRoute(overload).chain;
  return route;
}

// Those of the device and of overlays.
std::vector<Overload*> All() {
  std::vector<Overload*> all = AllOverloads();
  for (Overload* overload : OverlaidOverloads()) all.push_back(overload);
  return all;
}

// What an overlay says comes before all rules.
OverloadRoute Ruled(const Overload& overload) {
  const std::string said = overload.overlaid ? overload.overlaid->Said() : "";
  return said.empty() ? RuledRoute(overload) : OverloadRoute{ParseChain(said), "overlay", false};
}

void FollowRules(void*) {
  {
    const std::lock_guard lock(routes_mutex);
    for (Overload* overload : All()) Publish(overload, Ruled(*overload));
  }
  AdjustOverlays();
}

void Republish(void* = nullptr) {
  {
    const std::lock_guard lock(routes_mutex);
    for (Overload* overload : All()) {
      const OverloadRoute* route = overload->route.load();
      if (route) Publish(overload, *route);
    }
  }
  AdjustOverlays();
}

std::string DeviceText(const Overload& overload) {
  return overload.overlaid ? overload.overlaid->device : c10::str(Outer(Use()->Current()));
}

void Tell(Overload* overload, const Link& link, const OverloadRoute& route, bool is_fallback) {
  if (counting.load(std::memory_order_relaxed)) {
    const int place = std::min(static_cast<int>(link.kind), kCounted - 1);
    overload->calls[place].fetch_add(1, std::memory_order_relaxed);
  }
  if (log_level && __atomic_load_n(log_level, __ATOMIC_RELAXED))
    AnyopLogAtenDispatch(overload->name.c_str(), link.name.c_str(), DeviceText(*overload).c_str(),
                         route.reason.c_str(), is_fallback);
}

void RunTorchs(Overload& overload, torch::jit::Stack* stack) {
  if (overload.overlaid) return overload.overlaid->RunOriginal(overload.op, stack);
  RunBoxed(overload, overload.op, stack);
}

// Copies to the CPU and back, unless ANYOP_FALLBACK forbids it.
void RunOnCpu(Overload* overload, const OverloadRoute& route, const std::string& why,
              torch::jit::Stack* stack) {
  if (overload->overlaid && overload->overlaid->device == "cpu") return RunTorchs(*overload, stack);
  const int32_t status = AnyopAtenFallback(overload->name.c_str(), "cpu_fallback",
                                           DeviceText(*overload).c_str(), why.c_str());
  TORCH_CHECK_NOT_IMPLEMENTED(status == kAnyopOk, AnyopLastError());
  Tell(overload, *LinkOf("cpu_fallback"), route, true);
  at::native::cpu_fallback(overload->op, stack);
}

}  // namespace

void RunRouted(Overload& overload, torch::jit::Stack* stack) {
  const OverloadRoute& route = *overload.route.load(std::memory_order_acquire);
  std::string why = "no kernel of the device takes it";
  for (const Link& link : route.chain) {
    switch (link.kind) {
      case RouteKind::kBoxed:
        if (!HasBoxed(overload)) continue;
        Tell(&overload, link, route, false);
        return RunTorchs(overload, stack);
      case RouteKind::kNative:
        if (!RunNative(overload, stack, &why)) continue;
        return Tell(&overload, link, route, false);
      case RouteKind::kPython:
        if (!RunPython(overload, link.name, stack, &why)) continue;
        return Tell(&overload, link, route, false);
      case RouteKind::kCpuFallback:
        return RunOnCpu(&overload, route, why, stack);
      case RouteKind::kNone:
        TORCH_CHECK_NOT_IMPLEMENTED(false, overload.name, ": refused by its route (", route.reason,
                                    ")");
    }
  }
  const RouteKind rest = DefaultRoute(overload).chain.front().kind;  // nobody of the route took it
  TORCH_CHECK_NOT_IMPLEMENTED(rest != RouteKind::kNone, overload.name, ": ", why,
                              ", and ANYOP_DISABLE leaves nothing else");
  if (rest == RouteKind::kBoxed) {
    const int32_t status =
        AnyopAtenFallback(overload.name.c_str(), "aten", DeviceText(overload).c_str(), why.c_str());
    TORCH_CHECK_NOT_IMPLEMENTED(status == kAnyopOk, AnyopLastError());
    Tell(&overload, *LinkOf("aten"), route, true);
    return RunTorchs(overload, stack);
  }
  RunOnCpu(&overload, route, why, stack);
}

void StartRoutes() {
  std::vector<const char*> names;
  for (const Overload* overload : AllOverloads()) names.push_back(overload->name.c_str());
  const int32_t status = AnyopSetAtenOverloads(names.data(), static_cast<int64_t>(names.size()));
  TORCH_CHECK_VALUE(status == kAnyopOk, AnyopLastError());
  WatchRoutes();
  FollowRules(nullptr);
}

void WatchRoutes() {
  log_level = AnyopDispatchLogLevel();
  AnyopWatchAtenRoutes(&FollowRules, nullptr);
  AnyopWatchDispatchLog(&Republish, nullptr);
}

void FollowRoute(Overload* overload) {
  const std::lock_guard lock(routes_mutex);
  Publish(overload, Ruled(*overload));
}

void SetRoute(Overload* overload, const std::string& backends) {
  const std::lock_guard lock(routes_mutex);
  std::vector<Link> chain = ParseChain(backends);
  Publish(overload,
          chain.empty() ? Ruled(*overload) : OverloadRoute{std::move(chain), "set_route", false});
}

void CheckRoute(const std::string& backends) { ParseChain(backends); }

std::string RouteText(const Overload& overload) {
  const OverloadRoute* route = overload.route.load();
  std::string text;
  if (!route) return "aten";
  for (const Link& link : route->chain) text += (text.empty() ? "" : ",") + link.name;
  return text;
}

void CountCalls(bool on) {
  counting = on;
  Republish();
}

bool IsBackendAvailable(const std::string& name) {
  if (AnyopAtenIsDisabled(name.c_str())) return false;
  if (name == "aten" || name == "boxed") return Use()->boxed;
  return name == "native" || name == "cpu_fallback" || name == "none" || HasPythonBackend(name);
}

}  // namespace anyop::torch_device
