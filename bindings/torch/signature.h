// SPDX-License-Identifier: Apache-2.0
// An operator's schema in torch's words.
#pragma once

#include <string>

#include "operator/operator.h"
#include "values.h"

namespace anyop::torch {

// "rms_norm(Tensor x, ..., *, str? use=None) -> Tensor" or
// "rms_norm.out(Tensor x, ..., *, Tensor(out0!) out, str? use=None) -> ()".
std::string Signature(const Operator& op, Form form);

// "anyop::rms_norm", and the overload with which a form is recorded.
std::string TorchName(const Operator& op);
inline const char* RecordingOverload(Form form) {
  return form.destination ? "out_autograd" : "autograd";
}

// What each argument of a form is to the glue: letters of AnyopTorchKind. Empty where one is a
// list.
std::string Kinds(const Operator& op, Form form);

// Optional results are wanted or not: the functional form has a mask as its last argument.
bool HasMask(const Operator& op);

// The last argument of every form is the scope of the call, `use`, unless the operator has an
// argument of that name, or torch's C ABI has no text: before 2.10.
bool TakesScope(const Operator& op);

// Whether torch's C ABI before 2.10 has no values of some argument's type.
bool NeedsListsOrText(const Operator& op);

}  // namespace anyop::torch
