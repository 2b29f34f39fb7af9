// SPDX-License-Identifier: Apache-2.0
// The factor that gradients are clipped by.
#ifndef ANYOP_OPS_MULTI_TENSOR_CLIP_H_
#define ANYOP_OPS_MULTI_TENSOR_CLIP_H_

#include "step.h"

namespace anyop {

// At most 1; NaN of a norm that is NaN, as torch's.
ANYOP_STEP double ClipFactor(double max_norm, double norm) {
  const double factor = max_norm / (norm + 1e-6);
  return factor > 1 ? 1 : factor;
}

}  // namespace anyop

#endif  // ANYOP_OPS_MULTI_TENSOR_CLIP_H_
