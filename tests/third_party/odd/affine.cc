// SPDX-License-Identifier: Apache-2.0
// affine on the CPU: one pass.
#include "odd/ops/affine.h"

extern "C" int32_t odd_affine_cpu(const AffineArgs* args, AnyopCall*) {
  const auto* x = static_cast<const float*>(args->x->data);
  auto* out = static_cast<float*>(args->out->data);
  const float factor = static_cast<float>(args->factor), offset = static_cast<float>(args->offset);
  for (int64_t i = 0; i < args->rows; ++i) out[i] = factor * x[i] + offset;
  return kAnyopOk;
}
