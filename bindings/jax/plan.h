// SPDX-License-Identifier: Apache-2.0
// What the text of a call site says, read once: the operator, and whose the buffers are.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "operator/operator.h"
#include "router/rules/scope.h"

namespace anyop::xla {

struct Slot {
  uint32_t param;
  bool is_list;
  bool changed;          // a result that is the new value of an argument
  std::string elements;  // of a list: '0' where it is None, else '1'
};

struct Plan {
  std::string text;
  const Operator* op;
  std::string called;  // the operator that errors name, where it is another one
  std::vector<Slot> args;
  std::vector<Slot> results;
  uint64_t unwanted = 0;         // optional results that the site does not name
  uint64_t expected = 0;         // inputs without which something must be done
  const Scope* scope = nullptr;  // in which it was traced
  const Plan* next = nullptr;
};

// The plan of a text such as
//   {"operator":"anyop.foreach_add","arguments":[["xs","110"],"alpha"],"results":[["out","11"]]}
// with "called" beside it where another operator was called, and "use" where it was traced in a
// scope. Plans stay for ever: there are as many as programs differ in operators and in which
// arguments are absent.
// nullptr with *error set, and *status saying its kind. May throw std::bad_alloc.
const Plan* FindPlan(std::string_view text, std::string* error, int32_t* status);

// T? and T[]?; a Tensor?[] is optional in its elements only.
inline bool MayBeNone(const Param& p) {
  return p.Is(kAnyopOptional) && !(p.Is(kAnyopOptionalElements) && !p.Is(kAnyopHasDefault));
}

}  // namespace anyop::xla
