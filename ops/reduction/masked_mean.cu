// SPDX-License-Identifier: Apache-2.0
// masked_mean on CUDA: one read of the tokens that count.
//
// A block has 32 pieces of 16 bytes of the features of one sequence, and kLanes threads for each,
// which share the tokens, four of them on their way. 64 tokens at a time are summed in float32,
// their sums in float64. Where that is too few blocks, the tokens are cut into splits, whose sums a
// second kernel adds in order.
#include "anyop/cuda/row_operands.h"
#include "anyop/ops/masked_mean.h"
#include "mask_cuda.h"

namespace anyop::cuda {
namespace {

constexpr int kPieces = 32, kLanes = 8, kThreads = kPieces * kLanes, kBatch = 4;

struct Means {
  const void* x;
  void* out;
  Mask mask;
  int64_t B, T, D;
  bool aligned;     // out
  int64_t blocks;   // of a row of features
  int64_t splits;   // of the tokens
  double* sums;     // (B, splits, D), where there are several
  int64_t* counts;  // (B, splits)
};

template <typename W>
__device__ W MeanOf(double sum, int64_t count) {
  return static_cast<W>(sum * (count ? 1.0 / static_cast<double>(count) : 0));
}

template <typename T, int kPer>
__global__ void __launch_bounds__(kThreads) MeanOfTokens(const __grid_constant__ Means p) {
  using W = Wide<T>;
  __shared__ double sums[kLanes][kPer][kPieces];
  __shared__ int64_t counts[kLanes];
  const int64_t block = blockIdx.x % p.blocks, rest = blockIdx.x / p.blocks;
  const int64_t split = rest % p.splits, b = rest / p.splits;
  const int64_t first = (block * kPieces + threadIdx.x) * kPer;
  const int64_t end = p.T * (split + 1) / p.splits;
  const T* x = static_cast<const T*>(p.x) + b * p.T * p.D + first;
  const bool inside = first < p.D;
  double whole[kPer] = {};
  int64_t count = 0, t = p.T * split / p.splits + threadIdx.y;
  while (t < end) {
    W part[kPer] = {};
    for (int turn = 0; turn < 64 / kBatch && t < end; ++turn, t += kBatch * kLanes) {
      bool counted[kBatch];
      Piece<W, kPer> tokens[kBatch];
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        counted[i] = t + i * kLanes < end && p.mask[b * p.T + t + i * kLanes];
#pragma unroll
      for (int i = 0; i < kBatch; ++i)
        if (counted[i] && inside) tokens[i] = ReadPiece<kPer>(x + (t + i * kLanes) * p.D, true);
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (!counted[i]) continue;
        ++count;
#pragma unroll
        for (int k = 0; k < kPer; ++k) part[k] += inside ? tokens[i].at[k] : W(0);
      }
    }
#pragma unroll
    for (int k = 0; k < kPer; ++k) whole[k] += static_cast<double>(part[k]);
  }
#pragma unroll
  for (int k = 0; k < kPer; ++k) sums[threadIdx.y][k][threadIdx.x] = whole[k];
  if (threadIdx.x == 0) counts[threadIdx.y] = count;
  __syncthreads();
  if (threadIdx.y || !inside) return;
  for (int i = 1; i < kLanes; ++i) {
    count += counts[i];
#pragma unroll
    for (int k = 0; k < kPer; ++k) whole[k] += sums[i][k][threadIdx.x];
  }
  if (p.splits > 1) {
    if (block == 0 && threadIdx.x == 0) p.counts[rest] = count;
#pragma unroll
    for (int k = 0; k < kPer; ++k) p.sums[rest * p.D + first + k] = whole[k];
    return;
  }
  Piece<W, kPer> mean;
#pragma unroll
  for (int k = 0; k < kPer; ++k) mean.at[k] = MeanOf<W>(whole[k], count);
  WritePiece<kPer>(static_cast<T*>(p.out) + b * p.D + first, p.aligned, mean);
}

// A thread for each result.
__global__ void __launch_bounds__(kThreads)
    AddSplits(const __grid_constant__ Means p, AnyopDtype dtype) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t at = int64_t{blockIdx.x} * kThreads + threadIdx.x; at < p.B * p.D; at += step) {
    const int64_t b = at / p.D, d = at % p.D;
    double sum = 0;
    int64_t count = 0;
#pragma unroll 4
    for (int64_t split = b * p.splits; split < (b + 1) * p.splits; ++split) {
      sum += p.sums[split * p.D + d];
      count += p.counts[split];
    }
    WriteFloating(static_cast<char*>(p.out), at, dtype, MeanOf<double>(sum, count));
  }
}

template <typename T, int kPer>
int32_t Run(AnyopCall* call, Means p, AnyopDtype dtype) {
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  p.blocks = CeilDiv(p.D, kPieces * kPer);
  const int64_t wanted = CeilDiv(int64_t{limits.multiprocessors} * 4, p.B * p.blocks);
  const int64_t most = CeilDiv(p.T, 4 * kBatch * kLanes);  // tokens that are worth a split
  p.splits = wanted < most ? wanted : most > 0 ? most : 1;
  if (p.splits > 1) {
    p.sums = static_cast<double*>(
        call->workspace(call, p.B * p.splits * (p.D + 1) * int64_t{sizeof(double)}));
    if (!p.sums) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
    p.counts = reinterpret_cast<int64_t*>(p.sums + p.B * p.splits * p.D);
  }
  const int64_t blocks = p.B * p.splits * p.blocks;
  if (blocks > 0x7fffffff)
    return call->fail(call, kAnyopDeclined, "there are more than 2^31 blocks of sequences");
  const Launch launch{dim3(static_cast<unsigned>(blocks)), dim3(kPieces, kLanes)};
  const int32_t status = launch.Run(call, MeanOfTokens<T, kPer>, p);
  if (status || p.splits == 1) return status;
  const int64_t needed = CeilDiv(p.B * p.D, kThreads);
  const Launch add{dim3(static_cast<unsigned>(needed < 0x7fffffff ? needed : 0x7fffffff)),
                   dim3(kThreads)};
  return add.Run(call, AddSplits, p, dtype);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_masked_mean_cuda(const MaskedMeanArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  if (args->B == 0 || args->D == 0) return kAnyopOk;
  const Means p = {args->x->data,
                   args->out->data,
                   Mask(args->mask),
                   args->B,
                   args->T,
                   args->D,
                   IsAligned(args->out->data, 16),
                   0,
                   1,
                   nullptr,
                   nullptr};
  const AnyopDtype dtype = AnyopDtypeOf(args->x);
  return WithFloating(dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) < 8) {  // by what is read alone: the sums do not depend on out
      if (p.D % kPerVector<T> == 0 && IsAligned(args->x->data, 16))
        return Run<T, kPerVector<T>>(call, p, dtype);
    }
    return Run<T, 1>(call, p, dtype);
  });
}
