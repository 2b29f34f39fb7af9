// SPDX-License-Identifier: Apache-2.0
// One argument of an ATen operator, converted as torch.ops would.
#pragma once

#include "aten/aten_loans.h"
#include "op.h"

namespace anyop {

struct AtenRules {
  bool strict;  // torch's own; else also names of dtypes, an int for a SymInt[2], a seed
  // Set where torch would take the value and make something else of it: a fraction cut to an
  // integer, a number that is no dtype's code.
  bool* spoils;
};

// False, without an error, where the value does not fit the parameter.
bool Fit(AtenLoans* loans, const aten::Op& op, const aten::Param& p, const Given& given,
         const AtenRules& rules, AnyopAtenValue* value);

}  // namespace anyop
