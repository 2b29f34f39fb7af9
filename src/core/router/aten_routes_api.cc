// SPDX-License-Identifier: Apache-2.0
// The C ABI of aten_route.h: checks what it is given, and says what went wrong.
#include <algorithm>
#include <string>

#include "api/c_error.h"
#include "operator/registry.h"
#include "router/choose/route.h"
#include "router/report/log.h"
#include "router/rules/aten_routes.h"
#include "router/rules/settings.h"

namespace anyop {
namespace {

int32_t Bad(const std::string& text) { return SetError(kAnyopValueError, text.c_str()); }

// Body, when the environment's routes are read and right.
template <typename Body>
int32_t Started(const Body& body) {
  return Guarded([&] { return RouteError().empty() ? body() : Bad(RouteError()); });
}

bool IsWord(const std::string& name) {
  const auto is_letter = [](char c) {
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  };
  return !name.empty() && is_letter(name[0]) && std::all_of(name.begin(), name.end(), [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9');
  });
}

int32_t SetOverloads(const char* const* names, int64_t count) {
  std::vector<std::string> overloads;
  for (int64_t i = 0; i < count; ++i) {
    if (!names[i] || !names[i][0])
      return Bad("AnyopSetAtenOverloads: name " + std::to_string(i) + " is empty");
    overloads.emplace_back(names[i]);
  }
  std::string error;
  return SetAtenOverloads(std::move(overloads), &error) ? int32_t{kAnyopOk} : Bad(error);
}

// The registry is started first: while it starts, who is told could not ask for routes.
int32_t Watch(Watched what, void (*changed)(void*), void* context) {
  return Started([&] {
    if (!changed) return Bad("expected a function to be called at changes");
    WatchAten(what, changed, context);
    return int32_t{kAnyopOk};
  });
}

int32_t SayFallback(const AtenChoice& choice, const char* why) {
  const std::string text =
      "aten." + choice.overload + " on " + choice.device + ": " + why + "; " + choice.backend;
  if (TheSettings().fallback == Fallback::kWarn) LogFallbackOnce(text + " runs instead");
  if (TheSettings().fallback != Fallback::kError) return kAnyopOk;
  return SetError(kAnyopNotImplemented,
                  (text + " would run instead, which ANYOP_FALLBACK=error forbids").c_str());
}

}  // namespace
}  // namespace anyop

using anyop::Bad;
using anyop::Guarded;
using anyop::Started;

int32_t AnyopSetAtenOverloads(const char* const* names, int64_t count) {
  return Started([&] {
    if (count < 0 || (count > 0 && !names)) return Bad("AnyopSetAtenOverloads: expected names");
    return anyop::SetOverloads(names, count);
  });
}

int32_t AnyopAddAtenBackend(const char* name) {
  return Started([&] {
    if (!name || !anyop::IsWord(name))
      return Bad("AnyopAddAtenBackend: found '" + std::string(name ? name : "").substr(0, 60) +
                 "', expected a letter, then letters, digits and _");
    anyop::AddAtenBackend(name);
    return int32_t{kAnyopOk};
  });
}

int32_t AnyopAtenRoute(const char* overload, const char* device, AnyopAtenRouting* routing) {
  return Started([&] {
    if (!overload || !device || !routing || routing->size < sizeof *routing)
      return Bad("AnyopAtenRoute: expected an overload, a device and a routing with its size");
    if (!anyop::IsAtenDevice(device))
      return Bad("AnyopAtenRoute: found device '" + std::string(device).substr(0, 60) +
                 "', expected anyop, cpu or cuda");
    anyop::FindAtenRoute(overload, device, routing);
    return int32_t{kAnyopOk};
  });
}

int32_t AnyopAtenIsDisabled(const char* backend) {
  bool disabled = false;
  Guarded([&] {
    disabled = backend && anyop::IsAtenBackendDisabled(backend);
    return int32_t{kAnyopOk};
  });
  return disabled;
}

int32_t AnyopHasKernel(const AnyopOperator* op, int32_t device_type) {
  if (!op || device_type < 0 || device_type >= anyop::kMaxDeviceTypes) return 0;
  const auto* found = reinterpret_cast<const anyop::Operator*>(op);
  const anyop::Reading reading;
  const anyop::Route* route = found->route.load(std::memory_order_acquire);
  if (!route->Names(device_type)) return 0;
  const auto& there = route->On(device_type).candidates;
  return std::any_of(there.begin(), there.end(), [](const auto* i) { return i->device_type != 0; });
}

int32_t AnyopWatchAtenRoutes(void (*changed)(void* context), void* context) {
  return anyop::Watch(anyop::Watched::kRules, changed, context);
}

int32_t AnyopWatchDispatchLog(void (*changed)(void* context), void* context) {
  return anyop::Watch(anyop::Watched::kLogLevel, changed, context);
}

int32_t AnyopLogAtenDispatch(const char* overload, const char* backend, const char* device,
                             const char* reason, int32_t is_fallback) {
  return Guarded([&] {
    if (!overload || !backend || !device || !reason)
      return Bad("AnyopLogAtenDispatch: an argument is NULL");
    anyop::LogAtenChoice({overload, backend, device}, reason, is_fallback != 0);
    return int32_t{kAnyopOk};
  });
}

const int32_t* AnyopDispatchLogLevel(void) { return anyop::LogLevelPlace(); }

int32_t AnyopAtenFallback(const char* overload, const char* backend, const char* device,
                          const char* why) {
  return Guarded([&] {
    if (!overload || !backend || !device || !why)
      return Bad("AnyopAtenFallback: an argument is NULL");
    return anyop::SayFallback({overload, backend, device}, why);
  });
}
