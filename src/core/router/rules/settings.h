// SPDX-License-Identifier: Apache-2.0
// What the environment says about routes, read once.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "router/rules/rules.h"

namespace anyop {

enum class Fallback { kWarn, kSilent, kError };

// ANYOP_OP_RMS_NORM=triton,cuda
struct OperatorVariable {
  std::string name;     // whole
  std::string encoded;  // "RMS_NORM"
  std::vector<std::string> backends;
};

struct Settings {
  std::vector<std::string>
      disabled;  // ANYOP_DISABLE: names and patterns of backends, !name: all but
  Fallback fallback = Fallback::kWarn;      // ANYOP_FALLBACK
  bool checks_calls = false;                // ANYOP_CHECK=cpu
  int log_level = 0;                        // ANYOP_LOG_DISPATCH
  std::string log_file;                     // ANYOP_LOG_FILE
  std::string record_file;                  // ANYOP_RECORD
  std::string routes;                       // ANYOP_ROUTES
  std::vector<OperatorVariable> operators;  // ANYOP_OP_*
  std::string error;                        // of the first variable that cannot be read
};

// Reads the environment when it is first called.
const Settings& TheSettings();

// "ACME__RMS_NORM", as a variable names an operator; the namespace anyop may be left out.
bool Names(const OperatorVariable& variable, const Operator& op);
// Whether it is about overloads of ATen's.
bool IsAtenVariable(const OperatorVariable& variable);
// "ADD__TENSOR" of "add.Tensor".
std::string EncodeName(const std::string& name);

// Whether ANYOP_DISABLE removes a backend. concerns: whether "!name" is about backends of its kind.
bool IsDisabledBackend(const std::string& backend,
                       const std::function<bool(const std::string&)>& concerns);

// Checks the names of backends, and says on stderr which variables fit no operator.
std::string CheckVariables(const Settings& settings, const Catalogue& catalogue);

}  // namespace anyop
