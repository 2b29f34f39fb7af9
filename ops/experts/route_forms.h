// SPDX-License-Identifier: Apache-2.0
// What the texts of moe_route say, for the CPU and CUDA.
#pragma once

#include "anyop/kernel.h"

namespace anyop {

enum class Score { kSoftmax, kSigmoid, kTopkSoftmax };

inline Score ScoreOf(const AnyopString& text) {
  return text.count == 7 && text.data[1] == 'o'   ? Score::kSoftmax
         : text.count == 7 && text.data[1] == 'i' ? Score::kSigmoid
                                                  : Score::kTopkSoftmax;
}

// Weights are the softmax of the chosen logits.
inline bool OfChosen(Score score, bool renormalize) {
  return score == Score::kTopkSoftmax || (score == Score::kSoftmax && renormalize);
}

}  // namespace anyop
