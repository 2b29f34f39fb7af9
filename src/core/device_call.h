// SPDX-License-Identifier: Apache-2.0
// Runs a kernel of another device than the CPU: with that device current, with scratch memory of
// its stream.
#pragma once

#include "call.h"

namespace anyop {

// The kernel's status, or that of what failed around it; then the frame has a text.
int32_t RunOnDevice(Frame* frame, AnyopKernel kernel, AnyopCall* call);

}  // namespace anyop
