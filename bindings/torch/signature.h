// SPDX-License-Identifier: Apache-2.0
// An operator's schema in torch's words.
#pragma once

#include <string>

#include "operator.h"
#include "values.h"

namespace anyop::torch {

// "rms_norm(Tensor x, ...) -> Tensor" or "rms_norm.out(Tensor x, ..., *, Tensor(out0!) out) -> ()".
std::string Signature(const Operator& op, Form form);

// Optional results are wanted or not: the functional form has a mask as its last argument.
bool HasMask(const Operator& op);

// Whether torch's C ABI before 2.10 has no values of some argument's type.
bool NeedsListsOrText(const Operator& op);

}  // namespace anyop::torch
