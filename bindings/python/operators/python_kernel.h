// SPDX-License-Identifier: Apache-2.0
// Implementations that are Python callables: run(values, device_type, device_id, stream).
#pragma once

#include "python.h"
#include "router/implementation.h"

namespace anyop {

// Resolve of those that were registered: resolve_context is a callable that returns run, or a str
// that says what is missing.
bool ResolveCallable(const Implementation& implementation, AnyopKernel* run, void** context,
                     std::string* why);

// Raises what a kernel in Python raised in this thread, where the message of a failed call is the
// text of it: the same object. False when there is none.
bool RaiseKernelError(const char* message);

// Lets go of what ResolveCallable made, and of the callable that it asked; each may be nullptr.
void ForgetCallable(void* resolver, void* context);

}  // namespace anyop
