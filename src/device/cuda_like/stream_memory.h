// SPDX-License-Identifier: Apache-2.0
// Memory in the order of a stream for runtimes that have none: what a stream gives back, it is
// given again. No function waits, but where the device has no more.
#pragma once

#include "runtime.h"

namespace anyop::cuda_like {

// With the device current.
Code TakeKept(int32_t device, Handle stream, int64_t bytes, void** memory, int64_t* size);
void KeepFor(int32_t device, Handle stream, void* memory, int64_t size);
// Before a stream is ended: others get its blocks when its work is done.
Code Orphan(int32_t device, Handle stream);
// Gives back to the device all that nobody uses; waits for it.
Code ReleaseKept(int32_t device);

}  // namespace anyop::cuda_like
