// SPDX-License-Identifier: Apache-2.0
// What a step does to each scale of a loss, once for the CPU and for CUDA.
#ifndef ANYOP_OPS_MULTI_TENSOR_SCALE_UPDATE_H_
#define ANYOP_OPS_MULTI_TENSOR_SCALE_UPDATE_H_

#include "anyop/ops/update_scale_hysteresis.h"
#include "step.h"

namespace anyop {

template <typename Single>
struct ScaleUpdate {
  float* scale;
  int32_t *growth_tracker, *hysteresis_tracker;
  Single found_inf;
  double growth_factor, backoff_factor;
  int64_t growth_interval, hysteresis;

  explicit ScaleUpdate(const UpdateScaleHysteresisArgs& a)
      : scale(static_cast<float*>(a.current_scale->data)),
        growth_tracker(static_cast<int32_t*>(a.growth_tracker->data)),
        hysteresis_tracker(static_cast<int32_t*>(a.hysteresis_tracker->data)),
        found_inf{a.found_inf},
        growth_factor(a.growth_factor),
        backoff_factor(a.backoff_factor),
        growth_interval(a.growth_interval),
        hysteresis(a.hysteresis) {}

  ANYOP_STEP void operator()(int64_t i) const {
    if (found_inf.IsSet()) {
      growth_tracker[i] = 0;
      if (--hysteresis_tracker[i] <= 0) scale[i] = static_cast<float>(scale[i] * backoff_factor);
      return;
    }
    hysteresis_tracker[i] = static_cast<int32_t>(hysteresis);
    if (++growth_tracker[i] != growth_interval) return;
    growth_tracker[i] = 0;
    const auto grown = static_cast<float>(scale[i] * growth_factor);
    if (grown - grown == 0) scale[i] = grown;
  }
};

}  // namespace anyop

#endif  // ANYOP_OPS_MULTI_TENSOR_SCALE_UPDATE_H_
