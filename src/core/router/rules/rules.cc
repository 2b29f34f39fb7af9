// SPDX-License-Identifier: Apache-2.0
// What the names in rules mean, and what to say when they mean nothing.
#include "router/rules/rules.h"

#include <algorithm>
#include <cstdlib>

#include "operator/metadata.h"

namespace anyop {
namespace {

constexpr int kMaxMistakes = 20;  // that are said at once
constexpr const char* kBackends[] = {"cpu",    "cuda",      "hip",        "aten",
                                     "triton", "flaggems",  "flaggems_c", "tvm_ffi",
                                     "python", "reference", "flashinfer"};

std::string Suggested(const std::string& what, const std::string& name,
                      const std::vector<std::string>& known) {
  return "unknown " + what + " '" + name.substr(0, 60) + "'" + DidYouMean(name, known);
}

std::vector<std::string> Backends(const Catalogue& catalogue) {
  std::vector<std::string> names(std::begin(kBackends), std::end(kBackends));
  for (const Implementation* i : catalogue.implementations) {
    for (const std::string& name : {i->backend, i->name}) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  return names;
}

bool IsPattern(const std::string& text) { return text.find_first_of("*?") != std::string::npos; }

std::string Plain(std::string name) {
  const size_t colons = name.find("::");
  if (colons != std::string::npos) name.replace(colons, 2, ".");
  return name;
}

bool IsLater(const RouteFile& file, const std::string& pattern) {
  const std::string name = Plain(pattern);
  const size_t dot = name.find('.');
  return dot != std::string::npos &&
         std::find(file.later.begin(), file.later.end(), name.substr(0, dot)) != file.later.end();
}

// "rms_norm has no backend 'triton'; it has cpu, aten" where none of the operators has it.
bool CheckBackend(const Operator& op, const std::string& text, const Catalogue& catalogue,
                  std::string* error) {
  const auto [backend, choice] = ReadAsked(text);
  std::string there;
  for (const Implementation* i : catalogue.implementations) {
    if (i->op != &op) continue;
    if (i->backend == backend || i->name == backend) {
      *error = WrongChoice(*i, choice);
      return error->empty();
    }
    there += (there.empty() ? "" : ", ") + i->name;
  }
  // The schema may state a kernel that this build lacks.
  if (StatesBackend(op, backend)) return true;
  *error =
      op.name + " has no backend '" + backend + "'; it has " + (there.empty() ? "none" : there);
  return false;
}

class Checker {
 public:
  Checker(const RouteFile& file, const Catalogue& catalogue, std::string* error)
      : file_(file), catalogue_(catalogue), error_(error), known_(Backends(catalogue)) {}

  bool Check(const Rule& rule) {
    if (IsAten(rule.pattern)) return CheckAtenRule(file_, rule, *catalogue_.aten, error_);
    for (size_t b = 0; b < rule.backends.size(); ++b) {
      if (std::find(known_.begin(), known_.end(), ReadAsked(rule.backends[b]).name) == known_.end())
        return FailBackend(rule.backend_places[b], rule.backends[b]);
    }
    bool fits = false, binds = false;
    const Term* at = nullptr;
    std::string why;
    for (const Operator* op : catalogue_.operators) {
      if (!FitsOperator(rule.pattern, *op)) continue;
      fits = true;
      CallCondition condition;
      binds |= CallCondition::Bind(*op, rule.when, &condition, &at, &why);
      if (!IsPattern(rule.pattern) && !CheckBackends(rule, *op)) return false;
    }
    if (!fits) return IsLater(file_, rule.pattern) || FailPattern(rule);
    return binds || Fail(at->place, why);
  }

 private:
  bool Fail(const Place& place, const std::string& message) {
    *error_ = PlaceText(file_, place) + message;
    return false;
  }

  bool FailBackend(const Place& place, const std::string& backend) {
    const bool atens = IsKnownAtenBackend(backend, *catalogue_.aten);
    return Fail(place, UnknownBackend(backend, catalogue_) +
                           (atens ? "; it is for rules of ATen's overloads: aten.*" : ""));
  }

  bool CheckBackends(const Rule& rule, const Operator& op) {
    std::string why;
    for (size_t b = 0; b < rule.backends.size(); ++b) {
      if (!CheckBackend(op, rule.backends[b], catalogue_, &why))
        return Fail(rule.backend_places[b], why);
    }
    return true;
  }

  bool FailPattern(const Rule& rule) {
    if (IsPattern(rule.pattern))
      return Fail(rule.place, "no operator fits '" + rule.pattern.substr(0, 60) + "'");
    const std::string aten = "aten." + rule.pattern;
    for (const std::string& overload : catalogue_.aten->overloads) {
      if (FitsOverload(aten, overload))
        return Fail(rule.place,
                    "unknown operator '" + rule.pattern + "'; ATen's is '" + aten + "'");
    }
    return Fail(rule.place, UnknownOperator(rule.pattern, catalogue_));
  }

  const RouteFile& file_;
  const Catalogue& catalogue_;
  std::string* error_;
  const std::vector<std::string> known_;  // backends
};

}  // namespace

bool FitsOperator(const std::string& pattern, const Operator& op) {
  const std::string plain = Plain(pattern);
  return FitsPattern(plain, op.name) || FitsPattern(plain, op.full_name);
}

Asked ReadAsked(const std::string& text) {
  const size_t colon = text.find(':');
  const std::string digits = colon == text.npos ? "" : text.substr(colon + 1);
  if (digits.empty() || digits.size() > 3 || digits.find_first_not_of("0123456789") != digits.npos)
    return {text, -1};
  return {text.substr(0, colon), std::atoi(digits.c_str())};
}

std::string WrongChoice(const Implementation& i, int choice) {
  if (choice < i.choices) return "";
  const std::string has =
      i.choices ? std::to_string(i.choices) + " choices, 0 to " + std::to_string(i.choices - 1)
                : "no choices";
  return i.op->name + ": " + i.name + " has " + has + "; found " + std::to_string(choice);
}

bool IsKnownBackend(const std::string& name, const Catalogue& catalogue) {
  const std::vector<std::string> known = Backends(catalogue);
  return std::find(known.begin(), known.end(), ReadAsked(name).name) != known.end();
}

std::string UnknownBackend(const std::string& name, const Catalogue& catalogue) {
  return Suggested("backend", name, Backends(catalogue));
}

std::string UnknownOperator(const std::string& name, const Catalogue& catalogue) {
  std::vector<std::string> known;
  for (const Operator* op : catalogue.operators) known.push_back(op->name);
  return Suggested("operator", name, known);
}

bool CheckRules(const RouteFile& file, const Catalogue& catalogue, std::string* error) {
  std::string mistake;
  Checker checker(file, catalogue, &mistake);
  error->clear();
  for (const Rule& rule : file.rules) {
    if (checker.Check(rule)) continue;
    *error += (error->empty() ? "" : "\n") + mistake;
    if (std::count(error->begin(), error->end(), '\n') + 1 >= kMaxMistakes) break;
  }
  return error->empty();
}

}  // namespace anyop
