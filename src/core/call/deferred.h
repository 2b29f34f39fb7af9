// SPDX-License-Identifier: Apache-2.0
// Results that are not made before the kernel runs, because ATen makes them.
#pragma once

#include <atomic>

#include "call/call.h"
#include "router/choose/route.h"

namespace anyop {

// The kernel that runs plans of ATen's calls, and makes deferred results itself. nullptr: there is
// none yet.
extern std::atomic<AnyopKernel> kernel_of_plans;
void SetKernelOfPlans(AnyopKernel kernel);

// Whether the result, this parameter, now waits for the kernel: on this kind of device that of
// plans runs, or what runs is not known yet.
bool Defer(Frame* frame, uint32_t param, int device_type);

// Before a kernel that is long, or not compiled for the operator, or with deferred results. lends:
// it sees more than tensors of the caller's as they are; memory: of arguments is kept in place.
int32_t Prepare(Frame* frame, const Ready& ready, bool is_long, bool lends, bool memory);

// Before another kernel runs: what was deferred is made. With the caller's lock.
int32_t MakeDeferred(Frame* frame);
// The same within that kernel, which another follows that may run code of the caller's.
int32_t PrepareForAnother(AnyopCall* call);

}  // namespace anyop
