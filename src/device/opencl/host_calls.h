// SPDX-License-Identifier: Apache-2.0
// Functions of launch_host: each on a thread that no driver needs meanwhile.
#pragma once

#include "opencl_api.h"

namespace anyop::opencl {

// Calls function(context) when `before` is done, then completes and releases the user event `held`.
// A code; where it is not 0, nothing will be called.
Code CallBehind(Handle before, void (*function)(void*), void* context, Handle held);

}  // namespace anyop::opencl
