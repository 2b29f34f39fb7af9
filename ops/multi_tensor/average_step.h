// SPDX-License-Identifier: Apache-2.0
// How one element enters its average.
#ifndef ANYOP_OPS_MULTI_TENSOR_AVERAGE_STEP_H_
#define ANYOP_OPS_MULTI_TENSOR_AVERAGE_STEP_H_

#include "anyop/ops/multi_tensor_average.h"
#include "step.h"

namespace anyop {

template <typename W>
struct AverageStep {
  W weight, rest;

  // n: parameters that are in the average.
  template <typename Single>
  ANYOP_STEP static AverageStep Of(double n, const Single& rate) {
    const double weight = n == 0 ? 1 : rate.Read(1 / (n + 1));
    return {static_cast<W>(weight), static_cast<W>(1 - weight)};
  }
  // From the nearer end, as torch.lerp; an average that is replaced may be NaN.
  ANYOP_STEP void operator()(W& average, W p) const {
    const W change = p - average;
    average = weight < W(0.5) ? average + weight * change : rest == 0 ? p : p - rest * change;
  }
};

template <typename Single>
struct Average {
  static constexpr unsigned kReads = 3, kWrites = 1;
  static constexpr bool kCountsTensors = false;

  Single count, rate;

  explicit Average(const MultiTensorAverageArgs& a) : count{a.count}, rate{a.rate} {}

  ANYOP_STEP bool Skips() const { return false; }
  template <typename W>
  ANYOP_STEP AverageStep<W> At(W, int64_t) const {
    return AverageStep<W>::Of(count.Read(0), rate);
  }
};

}  // namespace anyop

#endif  // ANYOP_OPS_MULTI_TENSOR_AVERAGE_STEP_H_
