// SPDX-License-Identifier: Apache-2.0
// A call of a tvm-ffi function as a text states it, rmsnorm(out, rows(x), weight, eps, False), read
// once and checked against an operator.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "operator/operator.h"

namespace anyop::ffi {

// One step of an integer expression in postfix order.
struct PlanStep {
  enum Kind : uint8_t {
    kConst,  // value
    kSize,   // the size of that index
    kParam,  // the int argument of that index
    kNumel,  // elements of the tensor of that index
    kAdd,
    kSubtract,
    kMultiply,
    kFloorDivide,
    kCeilDivide,
    kRemainder,
    kMin,
    kMax,
  };
  Kind kind;
  int64_t value;
};
constexpr int kMaxPlanStack = 16;

struct PlanArgument {
  enum Kind : uint8_t {
    kNone,
    kBool,       // number
    kFloat,      // number
    kText,       // text
    kInteger,    // steps
    kParam,      // an argument or a result as it is
    kRows,       // all dimensions but the last joined into one
    kFlat,       // all dimensions joined into one
    kWorkspace,  // bytes of scratch memory by steps, as a tensor of uint8
    kList,       // elements: integers, floats and bools
  };
  Kind kind = kNone;
  int param = -1;
  double number = 0;
  std::string text;  // of kText; for all others as it was written
  std::vector<PlanStep> steps;
  std::vector<PlanArgument> elements;
};

struct CallPlan {
  std::string function;
  std::vector<PlanArgument> arguments;
};

// False on a mistake; *error is "column 9: found what, expected what".
bool ParseCall(std::string_view text, const Operator& op, CallPlan* plan, std::string* error);

// The value of an expression for the arguments of a call; ANYOP_NO_SIZE where it overflows.
int64_t EvaluateSteps(const std::vector<PlanStep>& steps, const Operator& op, const char* args);

// What the text of an implementation says, a flat JSON object.
struct CallText {
  std::string call;
  std::string module;   // what Python makes: "package.module:attribute"
  std::string library;  // a file that tvm-ffi loads; neither: a global function
  std::vector<std::string> needs;
};
bool ReadCallText(std::string_view json, CallText* text, std::string* error);

}  // namespace anyop::ffi
