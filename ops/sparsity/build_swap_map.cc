// SPDX-License-Identifier: Apache-2.0
// build_swap_map on the CPU: a thread takes pairs of stripes, and tries the 16 swaps row by row.
#include "anyop/ops/build_swap_map.h"

#include "anyop/cpu.h"
#include "two_of_four.h"

namespace anyop::cpu {
namespace {

// What each swap of two stripes changes in a row.
inline void AddSwaps(const float* left, const float* right, double* sums) {
  float x[4], y[4];
  for (int k = 0; k < 4; ++k) x[k] = left[k], y[k] = right[k];
  const double base = Kept(x[0], x[1], x[2], x[3]) + Kept(y[0], y[1], y[2], y[3]);
  for (int swap = 0; swap < 16; ++swap) {
    float &a = x[swap / 4], &b = y[swap % 4];
    const float was = a;
    a = b, b = was;
    sums[swap] += Kept(x[0], x[1], x[2], x[3]) + Kept(y[0], y[1], y[2], y[3]) - base;
    b = a, a = was;
  }
}

ANYOP_CPU_CLONES void Run(const BuildSwapMapArgs* args, int64_t begin, int64_t end) {
  const Matrix matrix(args->matrix);
  const Indices pairs(args->stripe_pairs);
  for (int64_t n = begin; n < end; ++n) {
    const float* left = matrix.At(0, pairs[2 * n] * 4);
    const float* right = matrix.At(0, pairs[2 * n + 1] * 4);
    double sums[16] = {};
    for (int64_t r = 0; r < matrix.R; ++r)
      AddSwaps(left + r * matrix.step, right + r * matrix.step, sums);
    auto* out = static_cast<float*>(args->out->data) + 16 * n;
    for (int swap = 0; swap < 16; ++swap) out[swap] = static_cast<float>(sums[swap]);
  }
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_build_swap_map_cpu(const BuildSwapMapArgs* args, AnyopCall* call) {
  using namespace anyop;
  const Indices pairs(args->stripe_pairs);
  if (const int32_t status = CheckIndices(call, "stripe_pairs", pairs, 2 * args->N, args->S, 2))
    return status;
  ParallelFor(call, args->N, cpu::kGrain / (args->R * 128 + 1) + 1,
              [&](int64_t begin, int64_t end) { cpu::Run(args, begin, end); });
  return kAnyopOk;
}
