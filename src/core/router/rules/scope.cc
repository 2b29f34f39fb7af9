// SPDX-License-Identifier: Apache-2.0
// Reads the texts of scopes, once each.
#include "router/rules/scope.h"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "router/router.h"

namespace anyop {
namespace {

std::mutex mutex;
int active = 0;
std::atomic<const Scope* (*)()> source{nullptr};

std::map<std::string, std::unique_ptr<const Scope>, std::less<>>& Scopes() {
  static auto* scopes = new std::map<std::string, std::unique_ptr<const Scope>, std::less<>>;
  return *scopes;
}

// The words of a list; false where one is empty.
bool Split(std::string_view text, char sign, std::vector<std::string>* words) {
  while (true) {
    const size_t end = text.find(sign);
    std::string_view word = text.substr(0, end);
    while (!word.empty() && word.front() == ' ') word.remove_prefix(1);
    while (!word.empty() && word.back() == ' ') word.remove_suffix(1);
    if (word.empty()) return false;
    words->emplace_back(word);
    if (end == std::string_view::npos) return true;
    text.remove_prefix(end + 1);
  }
}

std::unique_ptr<const Scope> Read(std::string_view text) {
  auto scope = std::make_unique<Scope>();
  scope->text = text;
  std::vector<std::string> rules;
  if (!Split(text, ';', &rules)) return nullptr;
  for (const std::string& rule : rules) {
    const size_t equals = rule.find('=');
    std::vector<std::string> backends, patterns;
    const std::string_view all = rule;
    const std::string_view behind = equals == rule.npos ? "*" : all.substr(equals + 1);
    if (!Split(all.substr(0, equals), ',', &backends) || !Split(behind, ',', &patterns))
      return nullptr;
    for (const std::string& pattern : patterns) {
      scope->patterns.push_back(pattern);
      scope->backends.push_back(backends);
    }
  }
  return scope;
}

}  // namespace

const Scope* FindScope(std::string_view text, std::string* error) {
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = Scopes().find(text);
  if (found != Scopes().end()) return found->second.get();
  std::unique_ptr<const Scope> scope = Read(text);
  if (!scope) {
    *error = "use is '" + std::string(text.substr(0, 60)) +
             "', expected backends=patterns such as 'triton,cuda=*norm*;aten=topk'";
    return nullptr;
  }
  return (Scopes()[std::string(text)] = std::move(scope)).get();
}

int RuleInScope(const Scope& scope, const Operator& op) {
  for (size_t i = scope.patterns.size(); i-- > 0;) {
    if (FitsOperator(scope.patterns[i], op)) return static_cast<int>(i);
  }
  return -1;
}

void SetScopeSource(const Scope* (*new_source)()) { source = new_source; }

const Scope* CurrentScope() {
  const auto ask = source.load(std::memory_order_acquire);
  return ask ? ask() : nullptr;
}

void EnterScope() {
  const std::lock_guard<std::mutex> lock(mutex);
  if (active++ == 0) SetWatch(kWatchScopes, true);
}

void LeaveScope() {
  const std::lock_guard<std::mutex> lock(mutex);
  if (--active == 0) SetWatch(kWatchScopes, false);
}

}  // namespace anyop
