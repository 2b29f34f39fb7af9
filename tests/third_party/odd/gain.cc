// SPDX-License-Identifier: Apache-2.0
// A result whose dtype follows an optional tensor; both results may be the inputs' memory.
#include "odd/ops/gain.h"

namespace {

double At(const AnyopTensor* t, int64_t i) {
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

extern "C" int32_t odd_gain_cpu(const GainArgs* args, AnyopCall*) {
  for (int64_t i = 0; i < args->rows * args->D; ++i) {
    const double sum = At(args->x, i) + At(args->y, i);
    Put(args->sum, i, sum);
    Put(args->out, i, args->weight ? sum * At(args->weight, i % args->D) : sum);
  }
  return kAnyopOk;
}
