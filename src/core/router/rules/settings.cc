// SPDX-License-Identifier: Apache-2.0
// Reads the environment's variables about routes.
#include "router/rules/settings.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "router/rules/aten_routes.h"

namespace anyop {
namespace {

constexpr char kOperatorPrefix[] = "ANYOP_OP_";

std::string Upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

std::string Value(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Words between commas; blanks around them are nothing.
std::vector<std::string> Words(const std::string& text) {
  std::vector<std::string> words;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const size_t first = text.find_first_not_of(' ', at),
                 last = text.find_last_not_of(' ', end - 1);
    if (first < end) words.push_back(text.substr(first, last - first + 1));
    at = end + 1;
  }
  return words;
}

void ReadOperators(Settings* settings) {
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string text = *entry;
    const size_t equals = text.find('='), prefix = sizeof kOperatorPrefix - 1;
    if (equals == text.npos || text.compare(0, prefix, kOperatorPrefix) != 0) continue;
    const std::string name = text.substr(0, equals);
    settings->operators.push_back(
        {name, Upper(name.substr(prefix)), Words(text.substr(equals + 1))});
    if (settings->operators.back().backends.empty() && settings->error.empty())
      settings->error = name + " is empty, expected a backend";
  }
}

// The index of a value among those a variable may have; -1 with an error noted.
int OneOf(const char* name, const std::vector<std::string>& known, Settings* settings) {
  const std::string value = Value(name);
  const auto found = std::find(known.begin(), known.end(), value);
  if (found != known.end()) return static_cast<int>(found - known.begin());
  if (value.empty()) return 0;
  std::string text = std::string(name) + " is '" + value.substr(0, 60) + "', expected ";
  for (const std::string& word : known) text += (&word == &known[0] ? "" : ", ") + word;
  if (settings->error.empty()) settings->error = text;
  return 0;
}

Settings Read() {
  Settings settings;
  settings.disabled = Words(Value("ANYOP_DISABLE"));
  const int fallback = OneOf("ANYOP_FALLBACK", {"warn", "silent", "error"}, &settings);
  settings.fallback = static_cast<Fallback>(fallback);
  settings.log_level = OneOf("ANYOP_LOG_DISPATCH", {"0", "1", "2"}, &settings);
  settings.checks_calls = OneOf("ANYOP_CHECK", {"off", "cpu"}, &settings) == 1;
  settings.log_file = Value("ANYOP_LOG_FILE");
  if (!settings.log_file.empty() && settings.log_level == 0) settings.log_level = 1;
  settings.record_file = Value("ANYOP_RECORD");
  settings.routes = Value("ANYOP_ROUTES");
  ReadOperators(&settings);
  return settings;
}

// ANYOP_OP_ACME__X may be for a library that comes later: said at the process's end.
void ReportLater(const std::string& name) {
  static auto* names = new std::vector<std::string>;
  if (names->empty()) {
    std::atexit([] {
      for (const std::string& late : *names) {
        std::fprintf(stderr, "anyop: %s fitted no operator that was loaded\n", late.c_str());
      }
    });
  }
  names->push_back(name);
}

}  // namespace

const Settings& TheSettings() {
  static const Settings* settings = new Settings(Read());
  return *settings;
}

std::string EncodeName(const std::string& name) {
  std::string encoded;
  for (const char c : name) encoded += c == '.' ? std::string("__") : std::string(1, c);
  return Upper(encoded);
}

bool IsAtenVariable(const OperatorVariable& variable) {
  return variable.encoded.compare(0, 6, "ATEN__") == 0;
}

bool IsDisabledBackend(const std::string& backend,
                       const std::function<bool(const std::string&)>& concerns) {
  bool others = false, kept = false;
  for (const std::string& pattern : TheSettings().disabled) {
    if (pattern[0] != '!' && FitsPattern(pattern, backend)) return true;
    if (pattern[0] != '!' || !concerns(pattern.substr(1))) continue;
    others = true;
    kept |= FitsPattern(pattern.substr(1), backend);
  }
  return others && !kept;
}

bool Names(const OperatorVariable& variable, const Operator& op) {
  return variable.encoded == EncodeName(op.name) || variable.encoded == EncodeName(op.full_name);
}

std::string CheckVariables(const Settings& settings, const Catalogue& catalogue) {
  if (!settings.error.empty()) return settings.error;
  for (const std::string& word : settings.disabled) {
    const std::string name = word.substr(word[0] == '!');
    if (name.find_first_of("*?") == name.npos && !IsKnownBackend(name, catalogue) &&
        !IsKnownAtenBackend(name, *catalogue.aten))
      return "ANYOP_DISABLE: " + UnknownBackend(name, catalogue);
  }
  std::vector<std::string> known;
  for (const Operator* op : catalogue.operators)
    known.push_back(kOperatorPrefix + EncodeName(op->name));
  std::string wrong = CheckAtenVariables(settings, *catalogue.aten);
  if (!wrong.empty()) return wrong;
  for (const OperatorVariable& variable : settings.operators) {
    if (IsAtenVariable(variable)) continue;
    for (const std::string& backend : variable.backends) {
      if (!IsKnownBackend(backend, catalogue))
        return variable.name + ": " + UnknownBackend(backend, catalogue);
    }
    const auto fits = [&](const Operator* op) { return Names(variable, *op); };
    if (std::any_of(catalogue.operators.begin(), catalogue.operators.end(), fits)) continue;
    const bool may_come = variable.encoded.find("__") != std::string::npos &&
                          variable.encoded.compare(0, 7, "ANYOP__") != 0;
    if (may_come) {
      ReportLater(variable.name);
      continue;
    }
    const std::string hint = DidYouMean(kOperatorPrefix + variable.encoded, known);
    std::fprintf(stderr, "anyop: %s fits no operator%s\n", variable.name.c_str(), hint.c_str());
  }
  return "";
}

}  // namespace anyop
