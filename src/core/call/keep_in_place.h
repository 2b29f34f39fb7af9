// SPDX-License-Identifier: Apache-2.0
// What a call has borrowed, while the caller's other threads run.
#pragma once

#include "call/call.h"

namespace anyop {

// The caller's other threads may run from here on: their tensors' sizes are theirs to change. On a
// device memory is freed in the order of its streams, so it need not be held.
void KeepInPlace(Frame* frame, bool memory);

}  // namespace anyop
