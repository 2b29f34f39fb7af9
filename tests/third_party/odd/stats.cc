// SPDX-License-Identifier: Apache-2.0
// A dtype chosen by the caller, and a result that need not be made.
#include "odd/ops/stats.h"

static double At(const AnyopTensor& x, int64_t row, int64_t d) {
  int64_t at = d * x.strides[x.ndim - 1];
  for (int k = x.ndim - 1; k--; row /= x.shape[k]) at += row % x.shape[k] * x.strides[k];
  return AnyopDtypeOf(&x) == kAnyopFloat32 ? static_cast<const float*>(x.data)[at]
                                           : static_cast<const double*>(x.data)[at];
}

int32_t odd_stats_cpu(const StatsArgs* args, AnyopCall*) {
  for (int64_t r = 0; r < args->rows; ++r) {
    double sum = 0, squares = 0;
    for (int64_t d = 0; d < args->D; ++d) {
      const double value = At(*args->x, r, d) + args->shift.value;
      sum += value;
      squares += value * value;
    }
    if (AnyopDtypeOf(args->total) == kAnyopFloat32)
      static_cast<float*>(args->total->data)[r] = static_cast<float>(sum);
    else
      static_cast<double*>(args->total->data)[r] = sum;
    if (args->squares) static_cast<double*>(args->squares->data)[r] = squares;
  }
  return kAnyopOk;
}
