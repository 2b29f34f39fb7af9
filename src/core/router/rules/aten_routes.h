// SPDX-License-Identifier: Apache-2.0
// Which backends are asked for overloads of ATen's: by variables, then by the rules in force.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "anyop/aten_route.h"
#include "router/rules/aten_rules.h"
#include "router/rules/rules.h"

namespace anyop {

struct Settings;

struct AtenRoutes {
  AtenNames names;
  std::vector<LoadedRule> rules;  // of the route file
  std::set<std::string> texts;    // handed out, never freed; equal ones are one
};

// The mistakes of variables ANYOP_OP_ATEN__* in backends and, once they are known, overloads; empty
// when there is none.
std::string CheckAtenVariables(const Settings& settings, const AtenNames& names);

// Whether a variable speaks of an overload; it comes before all rules.
bool HasAtenVariable(const std::string& overload);
// The last rule that fits, one of aten.rules; nullptr: none.
const LoadedRule* FindAtenRule(const AtenRoutes& aten, const std::string& overload,
                               const std::string& device);

// All of these take the router's lock.
bool SetAtenOverloads(std::vector<std::string> overloads, std::string* error);
void AddAtenBackend(const std::string& name);
bool IsAtenBackendDisabled(const std::string& backend);
void FindAtenRoute(const std::string& overload, const std::string& device,
                   AnyopAtenRouting* routing);

// Who is told of new rules and of another level of the log, without the router's lock.
enum class Watched : int { kRules, kLogLevel };
void WatchAten(Watched what, void (*changed)(void*), void* context);
void TellAtenWatchers(Watched what);

// The lock under which they are told; taken before the router's.
void LockAtenWatchers();
void UnlockAtenWatchers();

}  // namespace anyop
