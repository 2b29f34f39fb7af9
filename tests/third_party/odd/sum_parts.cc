// SPDX-License-Identifier: Apache-2.0
// A list whose elements may be None.
#include "odd/ops/sum_parts.h"

static int64_t Count(const AnyopTensor& t) {
  int64_t count = 1;
  for (int d = 0; d < t.ndim; ++d) count *= t.shape[d];
  return count;
}

static int64_t Offset(const AnyopTensor& t, int64_t i) {
  int64_t at = 0;
  for (int d = t.ndim; d--; i /= t.shape[d]) at += i % t.shape[d] * t.strides[d];
  return at;
}

int32_t odd_sum_parts_cpu(const SumPartsArgs* args, AnyopCall*) {
  double sum = 0;
  for (int64_t m = 0; m < args->parts.count; ++m) {
    const AnyopTensor& part = args->parts.data[m];
    if (part.ndim < 0) continue;
    const bool narrow = AnyopDtypeOf(&part) == kAnyopFloat32;
    for (int64_t i = 0, n = Count(part); i < n; ++i) {
      sum += narrow ? static_cast<const float*>(part.data)[i]
                    : static_cast<const double*>(part.data)[i];
    }
  }
  for (int64_t i = 0, n = Count(*args->x); i < n; ++i) {
    static_cast<float*>(args->out->data)[Offset(*args->out, i)] =
        static_cast<float>(static_cast<const float*>(args->x->data)[Offset(*args->x, i)] + sum);
  }
  return kAnyopOk;
}
