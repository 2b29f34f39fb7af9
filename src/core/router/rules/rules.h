// SPDX-License-Identifier: Apache-2.0
// Rules of route files and variables, checked against the operators and backends there are.
#pragma once

#include <string>
#include <vector>

#include "router/implementation.h"
#include "router/read/route_file.h"
#include "router/rules/aten_rules.h"

namespace anyop {

// A rule in force.
struct LoadedRule {
  Rule rule;
  std::string reason;  // "routes.txt:12", "ANYOP_OP_RMS_NORM"
};

// What rules can name.
struct Catalogue {
  std::vector<const Operator*> operators;
  std::vector<const Implementation*> implementations;
  const AtenNames* aten;  // valid as long as the router is locked
};

// "cuda:5" is the choice 5 of cuda, "cuda" none of them, -1.
struct Asked {
  std::string name;
  int choice;
};
Asked ReadAsked(const std::string& text);

// "linear: cuda has 4 choices, 0 to 3; found 5"; empty where it has that choice.
std::string WrongChoice(const Implementation& implementation, int choice);

// Whether a rule's pattern fits: of "rms_norm", "anyop.rms_norm", "acme.rms_norm",
// "acme::rms_norm".
bool FitsOperator(const std::string& pattern, const Operator& op);

// Checks all rules of a file: operators, backends, words of conditions. On mistakes false, and
// *error has a line for each of the first.
bool CheckRules(const RouteFile& file, const Catalogue& catalogue, std::string* error);

// Backends that are known without an implementation being there: "cuda" in a build without CUDA.
bool IsKnownBackend(const std::string& name, const Catalogue& catalogue);
// "unknown backend 'tritn'; did you mean triton?"
std::string UnknownBackend(const std::string& name, const Catalogue& catalogue);
// "unknown operator 'rmsnorm'; did you mean rms_norm?"
std::string UnknownOperator(const std::string& name, const Catalogue& catalogue);

}  // namespace anyop
