// SPDX-License-Identifier: Apache-2.0
// Inputs that are broadcast: their views for the kernel, and what is said where they do not fit.
#pragma once

#include "call/call.h"
#include "operator/sizes.h"

namespace anyop {

// Replaces broadcast inputs by views of the full shape, stride 0 where repeated.
void Expand(Frame* frame, const Sizes& sizes);

// Says which shapes do not fit together; join: of the operator's joins.
int32_t FailJoin(Frame* frame, int join);

}  // namespace anyop
