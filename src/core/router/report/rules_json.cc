// SPDX-License-Identifier: Apache-2.0
// The rules in force, as JSON: all of them, and those about a pattern.
#include <algorithm>

#include "router/report/json.h"
#include "router/router_state.h"
#include "router/rules/settings.h"
#include "router/rules/unreachable.h"

namespace anyop {
namespace {

void WriteTexts(Json* json, const char* key, const std::vector<std::string>& texts) {
  json->Key(key).Open('[');
  for (const std::string& text : texts) json->Text(text);
  json->Close(']');
}

// Its object is left open.
void WriteRule(Json* json, const LoadedRule& loaded) {
  json->Open('{').Key("pattern").Text(loaded.rule.pattern).Key("reason").Text(loaded.reason);
  WriteTexts(json, "backends", loaded.rule.backends);
  json->Key("when").Text(ConditionText(loaded.rule.when));
}

void WriteRules(Json* json, const char* key, const std::vector<LoadedRule>& rules) {
  json->Key(key).Open('[');
  for (const LoadedRule& loaded : rules) {
    WriteRule(json, loaded);
    json->Close('}');
  }
  json->Close(']');
}

// [["D", 8192], ...]: of each word that compares a number, what its subject is about.
void WriteNumbers(Json* json, const std::vector<Term>& terms) {
  json->Key("numbers").Open('[');
  for (const Term& term : terms) {
    if (!term.words.empty()) continue;
    json->Open('[').Text(term.argument.empty() ? term.name : term.argument);
    json->Number(term.number).Close(']');
  }
  json->Close(']');
}

// Those of which a part of `names` is chosen, and why no call gets to one.
template <typename Concerns>
void WriteRulesAbout(Json* json, const char* key, const std::vector<LoadedRule>& rules,
                     const std::vector<std::string>& unreachable, const Concerns& concerns) {
  json->Key(key).Open('[');
  for (size_t r = 0; r < rules.size(); ++r) {
    if (!concerns(rules[r].rule.pattern)) continue;
    WriteRule(json, rules[r]);
    WriteNumbers(json, rules[r].rule.when);
    json->Key("never").Text(unreachable[r]).Close('}');
  }
  json->Close(']');
}

}  // namespace

std::string RoutesJson() {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  Json json;
  json.Open('{').Key("deterministic").Boolean(router.deterministic);
  WriteTexts(&json, "files", router.file.files);
  WriteRules(&json, "rules", router.rules);
  WriteRules(&json, "aten_rules", router.aten.rules);
  json.Key("variables").Open('[');
  for (const OperatorVariable& variable : TheSettings().operators) json.Text(variable.name);
  json.Close(']');
  WriteTexts(&json, "disabled", TheSettings().disabled);
  return json.Close('}').text();
}

std::string RulesAboutJson(const std::string& pattern, const std::vector<std::string>& overloads) {
  Router& router = TheRouter();
  const std::lock_guard<std::mutex> lock(router.mutex);
  const std::vector<const Operator*> every = MakeCatalogue(router).operators;
  std::vector<const Operator*> operators;
  std::vector<std::string> names, fitting;
  for (const Operator* op : every) {
    if (IsAten(pattern) || !FitsOperator(pattern, *op)) continue;
    operators.push_back(op);
    names.push_back(op->name);
  }
  for (const std::string& overload : overloads)
    if (pattern == "*" || (IsAten(pattern) && FitsOverload(pattern, overload)))
      fitting.push_back(overload);
  Json json;
  json.Open('{');
  WriteTexts(&json, "operators", names);
  WriteTexts(&json, "overloads", fitting);
  WriteRulesAbout(&json, "rules", router.rules, WhyUnreachable(router.rules, every),
                  [&](const std::string& rule) {
                    return pattern == "*" ||
                           std::any_of(operators.begin(), operators.end(),
                                       [&](const Operator* op) { return FitsOperator(rule, *op); });
                  });
  WriteRulesAbout(&json, "aten_rules", router.aten.rules, WhyUnreachable(router.aten, overloads),
                  [&](const std::string& rule) {
                    return std::any_of(fitting.begin(), fitting.end(), [&](const auto& overload) {
                      return FitsOverload(rule, overload);
                    });
                  });
  return json.Close('}').text();
}

}  // namespace anyop
