// SPDX-License-Identifier: Apache-2.0
// Runs a kernel of another device than the CPU: with that device current, with scratch memory of
// its stream.
#pragma once

#include "call/call.h"

namespace anyop {

// The kernel's status, or that of what failed around it; then the frame has a text.
// first: a tensor of the call's.
// Where that is of a framework's device, the kernel is one of what lies below, call->device_type.
int32_t RunOnDevice(Frame* frame, const AnyopTensor& first, AnyopKernel kernel, AnyopCall* call);

}  // namespace anyop
