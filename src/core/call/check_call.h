// SPDX-License-Identifier: Apache-2.0
// ANYOP_CHECK=cpu: each call of a device's kernel is repeated by the CPU's, on copies, and
// compared.
#pragma once

#include <atomic>

#include "anyop/device.h"
#include "call/call.h"

namespace anyop {

inline std::atomic<bool> checks_calls{false};
inline bool ChecksCalls() { return checks_calls.load(std::memory_order_relaxed); }

// Runs the kernel, waits for it, and fails where what it has written is further from what the CPU's
// kernel writes than the tolerances of both: of the first such element the frame has a text. In a
// call that is entered, without the caller's lock; device: nullptr where none is registered.
int32_t RunChecked(Frame* frame, const AnyopDevice* device, AnyopKernel kernel, AnyopCall* call);

}  // namespace anyop
