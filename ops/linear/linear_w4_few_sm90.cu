// SPDX-License-Identifier: Apache-2.0
// linear_w4 of at most four rows in 16 bits on Hopper: w4_thin.h's blocks of 16 results, with two
// steps and their scales on their way at once, three blocks a multiprocessor. They start while the
// kernel before ends, and ask its first weight into the second cache.
#include "anyop/ops/linear_w4.h"
#include "w4_thin.h"

namespace anyop::cuda {
namespace {

constexpr int kFewAhead = 2, kStepFactors = 4 * w4::kFactors;

// What a lane has of a step: a block of each of two rows of weight, their scales and zero points.
struct FewStep {
  WideWords words;
  float scale[2];
  int zeros;  // the second in bits 4 to 7

  __device__ void Read(const FourBits& w, int step, const int (&n)[2]) {
    words = ReadWide(w, step, n);
    const int group = GroupOf(w, step * kStepFactors);
    scale[0] = ScaleOf(w, group, n[0]), scale[1] = ScaleOf(w, group, n[1]);
    zeros = ZeroOf(w, group, n[0]) | ZeroOf(w, group, n[1]) << 4;
  }
};

__device__ inline void FetchStep(const FourBits& w, int step, const int (&n)[2]) {
  const int block = 4 * step + (threadIdx.x & 3);
  if (block * w4::kFactors >= w.K) return;
#pragma unroll
  for (int i = 0; i < 2; ++i)
    FetchIntoSecondCache(w.weight + int64_t{n[i]} * (w.K / 2) + block * w4::kBytes);
}

template <typename T>
__global__ __launch_bounds__(kThinWarps * 32,
                             3) void MultiplyFewW4(const __grid_constant__ ThinProblem p) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32, row = lane / 4;
  const int column = blockIdx.x * kThinColumns + row;
  const int n[2] = {Lesser(column, p.w.N - 1), Lesser(column + 8, p.w.N - 1)};
  const int steps = (p.w.K + kStepFactors - 1) / kStepFactors;
  const int each = (steps + kThinWarps - 1) / kThinWarps;
  const int begin = Lesser(warp * each, steps), end = Lesser(begin + each, steps);
#pragma unroll
  for (int i = 0; i < kFewAhead; ++i)
    if (begin + i < end) FetchStep(p.w, begin + i, n);
  WaitForWork();
  LetNextStart();
  ThinSums<1> sums = {};
  for (int step = begin; step < end; step += kFewAhead) {
    FewStep ahead[kFewAhead];
#pragma unroll
    for (int i = 0; i < kFewAhead; ++i)
      if (step + i < end) ahead[i].Read(p.w, step + i, n);
#pragma unroll
    for (int i = 0; i < kFewAhead; ++i) {
      if (step + i >= end) break;
      const int zero[2] = {ahead[i].zeros & 15, ahead[i].zeros >> 4};
      WideStep<T, 1>(p, step + i, row, ahead[i].words, zero, &sums);
      sums.EndGroup(ahead[i].scale[0], ahead[i].scale[1]);
    }
  }
  StoreThin<T, 1>(p, 0, sums);
}

template <typename T>
int32_t RunFew(AnyopCall* call, const ThinProblem& p) {
  if (p.w.group % kStepFactors && p.w.group < p.w.K)
    return call->fail(call, kAnyopDeclined, "its groups are no multiples of 128 factors");
  const Launch launch{dim3(static_cast<unsigned>(CeilDiv(p.w.N, kThinColumns))),
                      dim3(kThinWarps * 32), 0, true};
  return launch.Run(call, MultiplyFewW4<T>, p);
}

}  // namespace
}  // namespace anyop::cuda

// Its conditions say: K a multiple of 32, x and weight aligned to 16 bytes.
extern "C" int32_t anyop_linear_w4_cuda_few_sm90(const LinearW4Args* args, AnyopCall* call) {
  using namespace anyop::cuda;
  const int64_t M = args->rows, N = args->N, K = 2 * args->J;
  if (int32_t status = CheckCounts(call, M, N, K)) return status;
  if (M == 0 || N == 0) return kAnyopOk;
  const ThinProblem p = ThinProblemOf(*args);
  return p.type == kAnyopFloat16 ? RunFew<__half>(call, p) : RunFew<__nv_bfloat16>(call, p);
}
