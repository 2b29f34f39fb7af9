// SPDX-License-Identifier: Apache-2.0
// Backends of overloads that are Python functions: operators "anyop_python::add__Tensor.triton"
// that Python defines, with the arguments of the overload.
#pragma once

#include <ATen/core/stack.h>

#include <string>

#include "routes/overload.h"

namespace anyop::torch_device {

// Makes a name one of a backend in Python, and what was not found is looked for again.
void AddPythonBackend(const std::string& name);
bool IsPythonBackend(const std::string& name);
// Whether Python says that it can serve.
bool HasPythonBackend(const std::string& name);

// Called by a function that does not take its arguments, before it raises.
void DeclinePython(const std::string& why);

// Calls the function on tensors of the inner device; false, with the arguments untouched, where
// there is none, it declines, or it is the caller; *why then says it.
bool RunPython(const Overload& overload, const std::string& backend, torch::jit::Stack* stack,
               std::string* why);

}  // namespace anyop::torch_device
