// SPDX-License-Identifier: Apache-2.0
// One gradient for two inputs, and one of an optional input's dtype.
#include "odd/ops/gain_backward.h"

namespace {

double At(const AnyopTensor* t, int64_t i) {
  if (!t) return 0;
  return AnyopDtypeOf(t) == kAnyopFloat32 ? static_cast<const float*>(t->data)[i]
                                          : static_cast<const double*>(t->data)[i];
}

void Put(AnyopTensor* t, int64_t i, double value) {
  if (AnyopDtypeOf(t) == kAnyopFloat32)
    static_cast<float*>(t->data)[i] = static_cast<float>(value);
  else
    static_cast<double*>(t->data)[i] = value;
}

}  // namespace

extern "C" int32_t odd_gain_backward_cpu(const GainBackwardArgs* args, AnyopCall*) {
  const int64_t D = args->D, count = args->rows * D;
  for (int64_t i = 0; args->grad_x && i < count; ++i) {
    const double weight = args->weight ? At(args->weight, i % D) : 1;
    const double product = args->grad_out ? At(args->grad_out, i) * weight : 0;  // 0 * inf is NaN
    Put(args->grad_x, i, At(args->grad_sum, i) + product);
  }
  for (int64_t d = 0; args->grad_weight && d < D; ++d) {
    double total = 0;
    for (int64_t i = d; i < count; i += D) total += At(args->grad_out, i) * At(args->sum, i);
    Put(args->grad_weight, d, total);
  }
  return kAnyopOk;
}
