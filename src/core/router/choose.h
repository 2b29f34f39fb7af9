// SPDX-License-Identifier: Apache-2.0
// The choice of one call, where a route alone does not say it.
#pragma once

#include "route.h"

namespace anyop {

// Finds what runs, says it to who watches, and explains where frame->explanation is set. On a
// failure the frame has a text.
int32_t Choose(Frame* frame, const Facts& facts, Ready* ready, int* runs_as);

}  // namespace anyop
