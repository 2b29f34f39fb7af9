// SPDX-License-Identifier: Apache-2.0
// The route "native": an anyop operator in the place of an overload.
#pragma once

#include <ATen/core/stack.h>

#include <string>

#include "routes/overload.h"

namespace anyop::torch_device {

// What operators' schemas say that they can stand for, in addition to what was said before; of each
// text what ReadNative reads. Throws where an operator or a form is unknown.
void AddNative(const c10::IValue& texts);

// Gives an overload those that can stand for it: for itself, its form in place and that with out=.
void AttachNative(Overload* overload);

// Runs the first operator that takes the arguments; false, with the arguments untouched, where none
// does, and *why then says it. Tensors are of the device, or of the CPU or CUDA alone.
bool RunNative(const Overload& overload, torch::jit::Stack* stack, std::string* why);

}  // namespace anyop::torch_device
