// SPDX-License-Identifier: Apache-2.0
// combine on CUDA: a block joins 128 columns of the parts of one head.
//
// Who does what: each warp takes every eighth part and all 128 columns, a lane four of them; the
// warps' sums meet in shared memory. The lanes of a warp share the parts' lse, which are in the
// first cache, to find the greatest one and the sum of the weights. Weights and sums are float32.
// 4 K + s bytes are moved an element of the result of size s.
#include "anyop/cuda/rows.h"
#include "mla/ops/combine.h"

namespace anyop::cuda {
namespace {

template <typename T>
struct Parts {
  const float *partial, *lse;
  T* out;
  float* total;
  int64_t rows, K, H, R;
};

constexpr int kWarps = 8, kPerLane = 4, kColumns = 32 * kPerLane;

// The same in every lane: the function's greatest value or sum over all parts.
template <typename Value, typename Join>
__device__ float OverParts(int64_t K, float sum, const Value& value, const Join& join) {
  for (int64_t k = threadIdx.x % 32; k < K; k += 32) sum = join(sum, value(k));
#pragma unroll
  for (int step = 16; step > 0; step /= 2) sum = join(sum, __shfl_xor_sync(~0u, sum, step));
  return sum;
}

template <typename T>
__global__ void __launch_bounds__(32 * kWarps) JoinParts(const __grid_constant__ Parts<T> p) {
  __shared__ float sums[kWarps][kColumns];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t pieces = p.R < 1 ? 1 : (p.R + kColumns - 1) / kColumns;
  for (int64_t task = blockIdx.x; task < p.rows * pieces; task += gridDim.x) {
    const int64_t row = task / pieces, column = task % pieces * kColumns;
    const int64_t first = row / p.H * p.K * p.H + row % p.H;  // part k is k H rows further
    const float* lse = p.lse + first;
    const float most = OverParts(
        p.K, -INFINITY, [&](int64_t k) { return lse[k * p.H]; },
        [](float a, float b) { return b > a || isnan(b) ? b : a; });
    const float base = most == -INFINITY ? 0 : most;
    const float weights = OverParts(
        p.K, 0.f, [&](int64_t k) { return expf(lse[k * p.H] - base); },
        [](float a, float b) { return a + b; });
    float sum[kPerLane] = {};
    for (int64_t k = warp; k < p.K; k += kWarps) {
      const float weight = expf(lse[k * p.H] - base);
      const float* part = p.partial + (first + k * p.H) * p.R + column;
#pragma unroll
      for (int i = 0; i < kPerLane; ++i) {
        const int r = lane + 32 * i;
        if (weight != 0 && column + r < p.R) sum[i] = MulAdd(weight, part[r], sum[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) sums[warp][lane + 32 * i] = sum[i];
    __syncthreads();
    if (threadIdx.x < kColumns && column + threadIdx.x < p.R) {
      float all = 0;
      for (int w = 0; w < kWarps; ++w) all += sums[w][threadIdx.x];
      p.out[row * p.R + column + threadIdx.x] = Narrow<T>(weights == 0 ? 0 : all / weights);
    }
    if (column == 0 && threadIdx.x == 0)
      p.total[row] = weights == 0 ? -INFINITY : base + logf(weights);
    __syncthreads();  // the sums are read
  }
}

template <typename T>
int32_t Run(const CombineArgs& args, AnyopCall* call) {
  const Parts<T> p = {static_cast<const float*>(args.partial->data),
                      static_cast<const float*>(args.lse->data),
                      static_cast<T*>(args.out->data),
                      static_cast<float*>(args.total->data),
                      args.B * args.H,
                      args.K,
                      args.H,
                      args.R};
  constexpr int64_t kMaxGrid = 0x7fffffff;
  const int64_t tasks = p.rows * (args.R < 1 ? 1 : CeilDiv(args.R, kColumns));
  const Launch launch{dim3(static_cast<unsigned>(tasks < kMaxGrid ? tasks : kMaxGrid)),
                      dim3(32 * kWarps)};
  return launch.Run(call, JoinParts<T>, p);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t mla_combine_cuda(const CombineArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  if (args->B == 0 || args->H == 0) return kAnyopOk;
  switch (AnyopDtypeOf(args->out)) {
    case kAnyopFloat16:
      return Run<__half>(*args, call);
    case kAnyopBFloat16:
      return Run<__nv_bfloat16>(*args, call);
    default:
      return Run<float>(*args, call);
  }
}
