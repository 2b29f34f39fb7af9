// SPDX-License-Identifier: Apache-2.0
// Reads every kind of argument that the ABI of release 0.1 has.
#include <string.h>

#include "acme/ops/blend.h"

int32_t acme_blend_cpu(const BlendArgs* args, AnyopCall* call) {
  if (args->base.size < sizeof(BlendArgs) || call->size < sizeof(AnyopCall)) {
    return call->fail(call, kAnyopInternalError, "the core is older than release 0.1");
  }
  const bool negative = strcmp(args->mode.data, "negative") == 0;
  if (!negative && strcmp(args->mode.data, "plain") != 0) {
    return call->fail(call, kAnyopValueError, "mode is neither 'plain' nor 'negative'");
  }
  float shift = 0;
  for (int64_t i = 0; i < args->shift.count; ++i) shift += static_cast<float>(args->shift.data[i]);
  const float factor = (args->factor.has ? static_cast<float>(args->factor.value) : 1.0f) * (args->twice ? 2 : 1);
  auto* x = static_cast<const float*>(args->x->data);
  auto* y = args->y ? static_cast<const float*>(args->y->data) : nullptr;
  auto* out = static_cast<float*>(args->out->data);
  auto* total = static_cast<float*>(args->total->data);
  const int64_t D = args->D;
  anyop::ParallelFor(call, args->rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      total[r] = 0;
      for (int64_t d = 0; d < D; ++d) {
        const float value = factor * x[r * D + d] + (y ? y[d] : 0) + shift;
        out[r * D + d] = negative ? -value : value;
        total[r] += out[r * D + d];
      }
    }
  });
  return kAnyopOk;
}
