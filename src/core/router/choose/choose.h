// SPDX-License-Identifier: Apache-2.0
// The choice of one call, where a route alone does not say it.
#pragma once

#include "router/choose/route.h"

namespace anyop {

// An implementation that said, when it was run, that it does not take the call; and the one before.
struct Declined {
  // Takes the text of its failure out of the frame.
  Declined(Frame* frame, const Ready& ready, bool counted, const Declined* before);

  Ready ready;
  std::string why;
  bool is_told = true;  // not where it gives no reason: the others are better at it
  bool counted;         // by Choose, as if it ran
  const Declined* before;
};

// Finds what runs, says it to who watches, and explains where frame->explanation is set. On a
// failure the frame has a text.
int32_t Choose(Frame* frame, const Facts& facts, Ready* ready, int* runs_as);

}  // namespace anyop
