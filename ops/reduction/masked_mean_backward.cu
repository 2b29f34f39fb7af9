// SPDX-License-Identifier: Apache-2.0
// Gradient of masked_mean on CUDA: a block counts the tokens of a sequence; then the lanes of a
// token read the sequence's row of grad_out, from a cache but once, and write the token's.
#include "anyop/cuda/row_operands.h"
#include "anyop/ops/masked_mean_backward.h"
#include "mask_cuda.h"

namespace anyop::cuda {
namespace {

constexpr int kThreads = 256;

struct Spread {
  const void* grad_out;
  void* grad_x;
  Mask mask;
  int64_t B, T, D;
  double* scales;  // (B)
  int lanes;
};

// Block b: 1 / how many of its tokens count.
__global__ void __launch_bounds__(kThreads) CountTokens(const __grid_constant__ Spread p) {
  __shared__ int64_t counts[kThreads / 32];
  for (int64_t b = blockIdx.x; b < p.B; b += gridDim.x) {
    int64_t count = 0;
#pragma unroll 4
    for (int64_t t = threadIdx.x; t < p.T; t += kThreads) count += p.mask[b * p.T + t];
    count = SumLanes(count, 32);
    if (threadIdx.x % 32 == 0) counts[threadIdx.x / 32] = count;
    __syncthreads();
    if (threadIdx.x == 0) {
      for (int i = 1; i < kThreads / 32; ++i) count += counts[i];
      p.scales[b] = 1.0 / static_cast<double>(count);  // of no token: read by none
    }
    __syncthreads();
  }
}

template <typename T, int kPer>
__global__ void __launch_bounds__(kThreads) SpreadRows(const __grid_constant__ Spread p) {
  using W = Wide<T>;
  const int lane = threadIdx.x % p.lanes, of_block = blockDim.x / p.lanes;
  for (int64_t row = int64_t{blockIdx.x} * of_block + threadIdx.x / p.lanes; row < p.B * p.T;
       row += int64_t{gridDim.x} * of_block) {
    const int64_t b = row / p.T;
    const bool counts = p.mask[row];
    const W scale = static_cast<W>(p.scales[b]);
    const T* from = static_cast<const T*>(p.grad_out) + b * p.D;
    T* to = static_cast<T*>(p.grad_x) + row * p.D;
#pragma unroll 4
    for (int64_t at = int64_t{lane} * kPer; at < p.D; at += int64_t{p.lanes} * kPer) {
      Piece<W, kPer> piece = {};
      if (counts) piece = ReadPiece<kPer>(from + at, true);
#pragma unroll
      for (int k = 0; k < kPer; ++k) piece.at[k] = counts ? piece.at[k] * scale : W(0);
      WritePiece<kPer>(to + at, true, piece);
    }
  }
}

template <typename T, int kPer>
int32_t Run(AnyopCall* call, Spread p) {
  const RowThreads threads(p.D / kPer, 4, kThreads);
  p.lanes = threads.lanes;
  return threads.LaunchFor(p.B * p.T).Run(call, SpreadRows<T, kPer>, p);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_masked_mean_backward_cuda(const MaskedMeanBackwardArgs* args,
                                                   AnyopCall* call) {
  using namespace anyop::cuda;
  const int64_t B = args->B, T = args->T, D = args->D;
  if (B == 0 || T == 0 || D == 0) return kAnyopOk;
  auto* scales = static_cast<double*>(call->workspace(call, B * int64_t{sizeof(double)}));
  if (!scales) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  const Spread p = {args->grad_out->data, args->grad_x->data, Mask(args->mask), B, T, D, scales, 0};
  const Launch count{dim3(static_cast<unsigned>(B < 0x7fffffff ? B : 0x7fffffff)), dim3(kThreads)};
  if (int32_t status = count.Run(call, CountTokens, p)) return status;
  return WithFloating(AnyopDtypeOf(args->grad_out), [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) < 8) {
      if (D % kPerVector<T> == 0 && IsAligned(p.grad_out, 16) && IsAligned(p.grad_x, 16))
        return Run<T, kPerVector<T>>(call, p);
    }
    return Run<T, 1>(call, p);
  });
}
