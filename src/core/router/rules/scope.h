// SPDX-License-Identifier: Apache-2.0
// The backends of single calls: rules "backends=patterns", joined by ";", of which the last that
// fits holds.
#pragma once

#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "router/rules/rules.h"

namespace anyop {

struct Scope {
  std::string text;
  mutable std::atomic<bool> checked{false};        // its names were there once
  std::vector<std::string> patterns;               // of each rule,
  std::vector<std::vector<std::string>> backends;  // and its backends
};

// The scope of a text: equal texts are one scope, which is never freed. nullptr and *error when it
// has a mistake.
const Scope* FindScope(std::string_view text, std::string* error);

// The rule that holds for an operator; -1: none.
int RuleInScope(const Scope& scope, const Operator& op);

// Who says in which scope a thread is, for calls that bring none. Called only while scopes are
// active.
void SetScopeSource(const Scope* (*source)());
const Scope* CurrentScope();

// Around the time in which a thread or task may be in a scope.
void EnterScope();
void LeaveScope();

}  // namespace anyop
