// SPDX-License-Identifier: Apache-2.0
// linear_w4 from Ampere on. 16 bits: few rows by w4_thin.h, which rounds no factor; more by the
// tiles of tile_mma.h, which unpack weight, rounded to x's type, into shared memory. float32: here.
#include "anyop/ops/linear_w4.h"
#include "tile_mma.h"
#include "w4_thin.h"

namespace anyop::cuda {
namespace {

constexpr int kWideRows = 8, kWideWarps = 4;

// A warp has one result of up to eight rows; its lanes share the blocks of K and add up their sums
// in a fixed order.
__global__ __launch_bounds__(kWideWarps *
                             32) void MultiplyFloatW4(const __grid_constant__ ThinProblem p) {
  const int lane = threadIdx.x & 31, n = blockIdx.x * kWideWarps + threadIdx.x / 32;
  if (n >= p.w.N) return;
  const int first = blockIdx.y * kWideRows, rows = Lesser(kWideRows, p.rows - first);
  const auto* x = static_cast<const float*>(p.x) + int64_t{first} * p.w.K;
  float sums[kWideRows] = {};
  for (int k = lane * w4::kFactors; k < p.w.K; k += 32 * w4::kFactors) {
    const int group = GroupOf(p.w, k);
    const float scale = ScaleOf(p.w, group, n), zero = static_cast<float>(ZeroOf(p.w, group, n));
    float part[kWideRows] = {};
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const uint32_t word = WordOf(p.w, n, k, t);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = k + 8 * i + 2 * t;
        if (at >= p.w.K) continue;
        const float low = LowOf(word, i) - zero, high = HighOf(word, i) - zero;
#pragma unroll
        for (int m = 0; m < kWideRows; ++m) {
          if (m >= rows) continue;
          const float* two = x + int64_t{m} * p.w.K + at;
          part[m] = MulAdd(two[1], high, MulAdd(two[0], low, part[m]));
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kWideRows; ++m) sums[m] = MulAdd(part[m], scale, sums[m]);
  }
#pragma unroll
  for (int m = 0; m < kWideRows; ++m) {
#pragma unroll
    for (int step = 16; step; step /= 2) sums[m] += __shfl_xor_sync(~0u, sums[m], step);
    const float bias = p.bias ? static_cast<const float*>(p.bias)[n] : 0;
    if (lane == 0 && m < rows)
      static_cast<float*>(p.out)[int64_t{first + m} * p.w.N + n] = sums[m] + bias;
  }
}

int32_t RunFloat(AnyopCall* call, const ThinProblem& p) {
  constexpr int kMostBlocks = 65535;
  for (int first = 0; first < p.rows; first += kMostBlocks * kWideRows) {
    ThinProblem part = p;
    part.rows = p.rows - first < kMostBlocks * kWideRows ? p.rows - first : kMostBlocks * kWideRows;
    part.x = static_cast<const float*>(p.x) + int64_t{first} * p.w.K;
    part.out = static_cast<float*>(p.out) + int64_t{first} * p.w.N;
    const Launch launch{dim3(static_cast<unsigned>(CeilDiv(p.w.N, kWideWarps)),
                             static_cast<unsigned>(CeilDiv(part.rows, kWideRows))),
                        dim3(kWideWarps * 32), 0};
    if (int32_t status = launch.Run(call, MultiplyFloatW4, part)) return status;
  }
  return kAnyopOk;
}

template <typename T>
int32_t RunTiles(AnyopCall* call, const LinearW4Args* args, const FourBits& w) {
  TileProblem p;
  if (int32_t status = PlainProblem(call, args->x, args->weight, args->bias, args->out, args->rows,
                                    args->N, 2 * args->J, &p))
    return status;
  p.weight = nullptr;
  p.four_bits = w;
  return RunByMma<kOperandOf<T>, TileForm::kFourBits>(call, p);
}

template <typename T>
int32_t Run(AnyopCall* call, const LinearW4Args* args, const ThinProblem& p) {
  return p.rows <= kMostThinRows ? RunThin<T>(call, p) : RunTiles<T>(call, args, p.w);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_linear_w4_cuda(const LinearW4Args* args, AnyopCall* call) {
  using namespace anyop::cuda;
  const int64_t M = args->rows, N = args->N, K = 2 * args->J;
  if (int32_t status = CheckCounts(call, M, N, K)) return status;
  if (M == 0 || N == 0) return kAnyopOk;
  const ThinProblem p = ThinProblemOf(*args);
  if (p.type == kAnyopFloat32) return RunFloat(call, p);
  return p.type == kAnyopFloat16 ? Run<__half>(call, args, p) : Run<__nv_bfloat16>(call, args, p);
}
