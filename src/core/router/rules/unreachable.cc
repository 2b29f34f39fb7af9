// SPDX-License-Identifier: Apache-2.0
// Looks for words of a condition that exclude each other, and for later rules that say all of it.
#include "router/rules/unreachable.h"

#include <algorithm>
#include <cstdint>
#include <map>

namespace anyop {
namespace {

// What the words about one subject leave of it.
struct Left {
  int64_t low = INT64_MIN, high = INT64_MAX;
  bool is_named = false;
  std::vector<std::string> names;  // of dtypes or devices, where it is

  void Narrow(const Term& term) {
    if (!term.words.empty()) return NarrowNames(term);
    const int64_t number = term.number;
    if (term.compare == Compare::kEqual || term.compare == Compare::kGreaterEqual)
      low = std::max(low, number);
    if (term.compare == Compare::kEqual || term.compare == Compare::kLessEqual)
      high = std::min(high, number);
    if (term.compare == Compare::kGreater) low = std::max(low, number + (number < INT64_MAX));
    if (term.compare == Compare::kLess) high = std::min(high, number - (number > INT64_MIN));
  }

  bool IsNothing() const { return low > high || (is_named && names.empty()); }

 private:
  void NarrowNames(const Term& term) {
    if (term.compare != Compare::kEqual) return;
    const auto is_out = [&](const std::string& name) {
      return std::find(term.words.begin(), term.words.end(), name) == term.words.end();
    };
    if (!is_named) names = term.words;
    names.erase(std::remove_if(names.begin(), names.end(), is_out), names.end());
    is_named = true;
  }
};

// "no D fits all words of its condition"; empty where they do not exclude each other.
std::string Contradiction(const std::vector<Term>& terms) {
  std::map<std::string, Left> subjects;
  for (const Term& term : terms) subjects[SubjectText(term)].Narrow(term);
  for (const auto& [subject, left] : subjects)
    if (left.IsNothing()) return "no " + subject + " fits all words of its condition";
  return "";
}

// Whether a condition holds wherever the other does, by its words.
bool HoldsWith(const std::vector<Term>& other, const std::vector<Term>& terms) {
  return std::all_of(terms.begin(), terms.end(), [&](const Term& term) {
    return std::any_of(other.begin(), other.end(),
                       [&](const Term& t) { return TermText(t) == TermText(term); });
  });
}

// The last rule behind this one that says the same for an operator; nullptr: none.
const LoadedRule* SaysTheSame(const std::vector<LoadedRule>& rules, size_t r, const Operator& op) {
  for (size_t later = rules.size(); --later > r;) {
    const Rule& rule = rules[later].rule;
    if (HoldsWith(rules[r].rule.when, rule.when) && FitsOperator(rule.pattern, op))
      return &rules[later];
  }
  return nullptr;
}

std::string WhyUnreachable(const std::vector<LoadedRule>& rules, size_t r,
                           const std::vector<const Operator*>& operators) {
  std::string clash = Contradiction(rules[r].rule.when);
  if (!clash.empty()) return clash;
  const LoadedRule* first = nullptr;
  for (const Operator* op : operators) {
    if (!FitsOperator(rules[r].rule.pattern, *op)) continue;
    const LoadedRule* same = SaysTheSame(rules, r, *op);
    if (!same) return "";
    if (!first) first = same;
  }
  return first ? first->reason + " says the same calls later" : "";
}

constexpr int kNobody = -1, kVariable = -2;

// By overload, then by device: the rule that decides.
std::vector<int> Deciding(const AtenRoutes& aten, const std::vector<std::string>& overloads) {
  std::vector<int> deciding;
  for (const std::string& overload : overloads) {
    const bool is_variable = HasAtenVariable(overload);
    for (const char* device : kAtenDevices) {
      const LoadedRule* rule = is_variable ? nullptr : FindAtenRule(aten, overload, device);
      const int at = rule ? static_cast<int>(rule - aten.rules.data()) : kNobody;
      deciding.push_back(is_variable ? kVariable : at);
    }
  }
  return deciding;
}

}  // namespace

std::vector<std::string> WhyUnreachable(const std::vector<LoadedRule>& rules,
                                        const std::vector<const Operator*>& operators) {
  std::vector<std::string> all;
  for (size_t r = 0; r < rules.size(); ++r) all.push_back(WhyUnreachable(rules, r, operators));
  return all;
}

std::vector<std::string> WhyUnreachable(const AtenRoutes& aten,
                                        const std::vector<std::string>& overloads) {
  const std::vector<int> deciding = Deciding(aten, overloads);
  std::vector<std::string> all;
  for (int r = 0; r < static_cast<int>(aten.rules.size()); ++r) {
    std::string& why = all.emplace_back();
    if (std::find(deciding.begin(), deciding.end(), r) != deciding.end()) continue;
    int later = kNobody;
    bool is_hidden = false;  // by a variable, which is not the file's mistake
    for (size_t i = 0; i < deciding.size(); ++i) {
      const Rule& rule = aten.rules[static_cast<size_t>(r)].rule;
      if (!FitsOverload(rule.pattern, overloads[i / std::size(kAtenDevices)])) continue;
      is_hidden |= deciding[i] == kVariable;
      later = std::max(later, deciding[i]);
    }
    if (is_hidden) continue;
    why = later > r ? aten.rules[static_cast<size_t>(later)].reason + " says the same later"
                    : "no device fits its condition";
  }
  return all;
}

}  // namespace anyop
