// SPDX-License-Identifier: Apache-2.0
// What penalize makes of a logit, on the CPU and on CUDA.
#ifndef ANYOP_OPS_SAMPLING_PENALTY_H_
#define ANYOP_OPS_SAMPLING_PENALTY_H_

#include "draw.h"

namespace anyop::sampling {

struct Penalty {
  float repetition, frequency, presence;

  ANYOP_DRAW_FUNCTION float operator()(float x, bool in_prompt, int32_t count) const {
    const float repeated = x > 0 ? x / repetition : x * repetition;
    x = in_prompt || count > 0 ? repeated : x;
    return count > 0 ? MulAdd(-frequency, static_cast<float>(count), x) - presence : x;
  }
};

struct Penalties {
  PerRow<float> repetition, frequency, presence;

  ANYOP_DRAW_FUNCTION Penalty operator[](int64_t b) const {
    return {repetition.data ? repetition[b] : 1.0f, frequency.data ? frequency[b] : 0.0f,
            presence.data ? presence[b] : 0.0f};
  }
};
template <typename Args>
Penalties PenaltiesOf(const Args& args) {
  return {PerRowOf<float>(args.repetition), PerRowOf<float>(args.frequency),
          PerRowOf<float>(args.presence)};
}

}  // namespace anyop::sampling

#endif  // ANYOP_OPS_SAMPLING_PENALTY_H_
