// SPDX-License-Identifier: Apache-2.0
// Rules about overloads of ATen's, checked against the overloads and backends that there are.
#include "router/rules/aten_rules.h"

#include <algorithm>

#include "router/rules/rules.h"

namespace anyop {
namespace {

constexpr const char* kBackends[] = {"native", "aten",   "cpu_fallback",
                                     "none",   "triton", "flaggems"};
// In ANYOP_DISABLE, where aten is about operators.
constexpr const char* kOfOverloadsAlone[] = {"native", "boxed", "cpu_fallback", "none"};
constexpr std::string_view kPrefix = "aten.";

std::vector<std::string> Backends(const AtenNames& names) {
  std::vector<std::string> all(std::begin(kBackends), std::end(kBackends));
  all.insert(all.end(), names.backends.begin(), names.backends.end());
  return all;
}

std::string_view Packet(std::string_view overload) {
  return overload.substr(0, overload.find('.'));
}

// The word that asks for more than a device; nullptr when none does.
const Term* BeyondDevice(const std::vector<Term>& when, std::string* error) {
  for (const Term& term : when) {
    if (term.name != "device") {
      *error = "found a condition on " + term.name +
               ", expected device alone: routes of ATen's overloads do not look at the call";
      return &term;
    }
    for (const std::string& word : term.words) {
      if (IsAtenDevice(word)) continue;
      *error = "found device " + word + ", expected anyop, cpu or cuda for ATen's overloads";
      return &term;
    }
  }
  return nullptr;
}

}  // namespace

bool IsAten(std::string_view pattern) {
  return pattern.substr(0, kPrefix.size()) == kPrefix || pattern.substr(0, 6) == "aten::";
}

bool FitsOverload(std::string_view pattern, const std::string& overload) {
  pattern.remove_prefix(pattern[4] == '.' ? 5 : 6);
  const std::string_view packet = Packet(overload);
  if (FitsPattern(pattern, packet) || FitsPattern(pattern, overload)) return true;
  return packet == overload && FitsPattern(pattern, overload + ".default");
}

bool HoldsOn(const std::string& device, const std::vector<Term>& when) {
  return std::all_of(when.begin(), when.end(), [&](const Term& term) {
    const auto& words = term.words;
    const bool named = std::find(words.begin(), words.end(), device) != words.end();
    return named == (term.compare == Compare::kEqual);
  });
}

bool IsAtenDevice(const std::string& device) {
  return std::find(std::begin(kAtenDevices), std::end(kAtenDevices), device) !=
         std::end(kAtenDevices);
}

std::string PlainAtenBackend(const std::string& name) {
  return name == "boxed" ? kTorchsOwn : name;
}

std::string DisabledAs(const std::string& backend) {
  const std::string plain = PlainAtenBackend(backend);
  return plain == kTorchsOwn ? "boxed" : plain;
}

bool IsKnownAtenBackend(const std::string& name, const AtenNames& names) {
  const std::vector<std::string> known = Backends(names);
  return std::find(known.begin(), known.end(), PlainAtenBackend(name)) != known.end();
}

std::string UnknownAtenBackend(const std::string& name, const AtenNames& names) {
  const std::vector<std::string> known = Backends(names);
  std::string text = "unknown backend '" + name.substr(0, 60) + "' of ATen's overloads, expected ";
  for (const std::string& other : known) text += (&other == &known[0] ? "" : ", ") + other;
  const std::string nearest = Nearest(name, known);
  return nearest.empty() ? text : text + "; did you mean '" + nearest + "'?";
}

std::string UnknownOverload(const std::string& pattern, const AtenNames& names) {
  const std::string shown = "'" + pattern.substr(0, 60) + "'";
  if (pattern.find_first_of("*?") != pattern.npos) return "no overload of ATen's fits " + shown;
  std::vector<std::string> known;
  for (const std::string& overload : names.overloads) {
    known.push_back(std::string(kPrefix).append(Packet(overload)));
    known.push_back(std::string(kPrefix) + overload);
  }
  const std::string nearest = Nearest(pattern, known);
  const std::string hint = nearest.empty() ? "" : "; did you mean '" + nearest + "'?";
  return "no overload of ATen's that can be routed is named " + shown + hint;
}

std::string WrongOrder(const std::vector<std::string>& backends) {
  const auto none = std::find(backends.begin(), backends.end(), "none");
  if (none == backends.end() || none + 1 == backends.end()) return "";
  return "found '" + *(none + 1) + "' behind none, expected none to be the last: it refuses";
}

bool CheckAtenRule(const RouteFile& file, const Rule& rule, const AtenNames& names,
                   std::string* error) {
  const auto fail = [&](const Place& place, const std::string& message) {
    *error = PlaceText(file, place) + message;
    return false;
  };
  std::string why;
  if (const Term* term = BeyondDevice(rule.when, &why)) return fail(term->place, why);
  for (size_t b = 0; b < rule.backends.size(); ++b) {
    if (!IsKnownAtenBackend(rule.backends[b], names))
      return fail(rule.backend_places[b], UnknownAtenBackend(rule.backends[b], names));
  }
  why = WrongOrder(rule.backends);
  if (!why.empty()) return fail(rule.backend_places.back(), why);
  const auto fits = [&](const std::string& name) { return FitsOverload(rule.pattern, name); };
  if (names.overloads.empty() || std::any_of(names.overloads.begin(), names.overloads.end(), fits))
    return true;
  return fail(rule.place, UnknownOverload(rule.pattern, names));
}

bool ConcernsAten(const std::string& pattern, const AtenNames& names) {
  const std::vector<std::string> known = Backends(names);
  return std::any_of(known.begin(), known.end(), [&](const std::string& name) {
    return FitsPattern(pattern, DisabledAs(name));
  });
}

bool ConcernsAtenAlone(const std::string& pattern) {
  return std::find(std::begin(kOfOverloadsAlone), std::end(kOfOverloadsAlone), pattern) !=
         std::end(kOfOverloadsAlone);
}

}  // namespace anyop
