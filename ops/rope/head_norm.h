// SPDX-License-Identifier: Apache-2.0
// Heads of at most kBlock elements as float (double): widened, normalised, rotated, written.
#ifndef ANYOP_OPS_ROPE_HEAD_NORM_H_
#define ANYOP_OPS_ROPE_HEAD_NORM_H_

#include "query_key.h"

namespace anyop::cpu {

// The weight of a norm and what is added to it, widened once.
template <typename Wide>
struct HeadWeight {
  alignas(64) Wide at[kBlock];
  HeadWeight(const AnyopTensor* weight, double offset) {
    const int64_t D = weight->shape[0];
    Angles<Wide>::ReadWide(weight, static_cast<const char*>(weight->data), D, at);
    Apply(D, [offset](Wide w) { return w + static_cast<Wide>(offset); }, at, at);
  }
};

// 1 / the root mean square of D elements.
template <typename Wide>
inline double ReciprocalRoot(const Wide* x, int64_t D, double eps) {
  const double sum = SumBlock(D, [](Wide v) { return v * v; }, x);
  return 1 / __builtin_sqrt(sum / static_cast<double>(D) + eps);
}

// The first R elements of a widened head, in place.
template <typename Wide>
inline void RotateBlock(const Table& table, Wide* x, const Angles<Wide>& by) {
  const int64_t half = table.R() / 2;
  table.interleaved ? RotatePairs<true>(half, 0, x, x, by, Wide{1})
                    : RotatePairs<false>(half, half, x, x, by, Wide{1});
}

}  // namespace anyop::cpu

#endif  // ANYOP_OPS_ROPE_HEAD_NORM_H_
