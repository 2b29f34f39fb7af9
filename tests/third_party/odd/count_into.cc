// SPDX-License-Identifier: Apache-2.0
// Arguments that are changed beside a result that is returned.
#include "odd/ops/count_into.h"

int32_t odd_count_into_cpu(const CountIntoArgs* args, AnyopCall* call) {
  auto* count = static_cast<int64_t*>(args->count->data);
  const bool narrow = args->index->dtype_bits == 32;
  for (int64_t v = 0; v < args->V; ++v) count[v] = 0;
  for (int64_t n = 0; n < args->N; ++n) {
    const int64_t v = narrow ? static_cast<const int32_t*>(args->index->data)[n]
                             : static_cast<const int64_t*>(args->index->data)[n];
    if (v < 0 || v >= args->V) return call->fail(call, kAnyopValueError, "index is out of range");
    ++count[v];
    auto* row = static_cast<float*>(args->x->data) + v * args->x->strides[0];
    for (int64_t d = 0; d < args->D; ++d) {
      row[d * args->x->strides[1]] += static_cast<const float*>(args->y->data)[n * args->D + d];
    }
  }
  for (int64_t v = 0; args->seen && v < args->V; ++v)
    static_cast<int64_t*>(args->seen->data)[v] += count[v];
  return kAnyopOk;
}
