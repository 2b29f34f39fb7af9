// SPDX-License-Identifier: Apache-2.0
// Few rows by 4-bit weights, which are bound by the bytes of weight, on every GPU from Ampere on.
//
// A block has 16 results of 8, 16 or 32 rows: weight is the long side of mma.sync. Its eight warps
// share K and add up their sums in their order, so the bits are the same each time. A lane reads 16
// bytes of each of two rows of weight, 32 factors, and the same features of a row of x for each
// eight rows; what is multiplied, the difference from the zero point, is exact, and the float32 sum
// of a group is scaled. Where groups are no multiples of 128, rows of weight or x do not begin at
// multiples of 16 bytes, or K is no multiple of 32, a lane reads a word of each at a time instead.
#pragma once

#include "anyop/cuda/mma.h"
#include "tile_problem.h"
#include "w4_cuda.h"

namespace anyop::cuda {
namespace {

struct ThinProblem {
  FourBits w;
  const void *x, *bias;  // bias: of x's type, or NULL
  void* out;
  AnyopDtype type;
  int rows;
};

// Of linear_w4's arguments, whose sizes were checked.
template <typename Args>
ThinProblem ThinProblemOf(const Args& args) {
  return {FourBitsOf(args.weight, args.scale, args.zero, args.group_size, args.N, 2 * args.J),
          args.x->data,
          args.bias ? args.bias->data : nullptr,
          args.out->data,
          AnyopDtypeOf(args.x),
          static_cast<int>(args.rows)};
}

constexpr int kThinWarps = 8, kThinColumns = 16;

template <typename T>
inline constexpr Operand kOperandOf = Operand::kBFloat16;
template <>
inline constexpr Operand kOperandOf<__half> = Operand::kFloat16;

// Sums of a group, and of those before it.
template <int kTiles>
struct ThinSums {
  float part[kTiles][4], total[kTiles][4];

  // The lane's two rows of weight have these scales.
  __device__ void EndGroup(float low, float high) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        total[j][c] = MulAdd(part[j][c], c < 2 ? low : high, total[j][c]);
        part[j][c] = 0;
      }
  }
};

// Two features of x from k on; 0 where there are none.
template <typename T>
__device__ uint32_t TwoOf(const ThinProblem& p, int row, int k) {
  if (row >= p.rows || k >= p.w.K) return 0;
  const auto* from = static_cast<const uint16_t*>(p.x) + int64_t{row} * p.w.K + k;
  return from[0] | uint32_t{from[1]} << 16;  // K is even
}

template <typename T, int kTiles>
__device__ void NarrowStep(const ThinProblem& p, int step, int row, const int (&n)[2],
                           const int (&zero)[2], ThinSums<kTiles>* sums) {
  const int lane = threadIdx.x & 31, t = lane % 4, k = step * w4::kFactors;
  const uint32_t words[2] = {WordOf(p.w, n[0], k, t), WordOf(p.w, n[1], k, t)};
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const uint32_t a[4] = {
        LessZero(T(), words[0], 2 * h, zero[0]), LessZero(T(), words[1], 2 * h, zero[1]),
        LessZero(T(), words[0], 2 * h + 1, zero[0]), LessZero(T(), words[1], 2 * h + 1, zero[1])};
#pragma unroll
    for (int j = 0; j < kTiles; ++j)
      MultiplyAdd<kOperandOf<T>>(sums->part[j], a, TwoOf<T>(p, row + 8 * j, k + 16 * h + 2 * t),
                                 TwoOf<T>(p, row + 8 * j, k + 16 * h + 8 + 2 * t));
  }
}

struct WideWords {
  uint4 of_row[2];
};

// The lane's block of a step of four, of two rows of weight; zeros behind the end.
__device__ inline WideWords ReadWide(const FourBits& w, int step, const int (&n)[2]) {
  const int block = 4 * step + (threadIdx.x & 3);
  WideWords words = {};
  if (block * w4::kFactors >= w.K) return words;
#pragma unroll
  for (int i = 0; i < 2; ++i)
    words.of_row[i] =
        LoadNow(reinterpret_cast<const uint4*>(w.weight + int64_t{n[i]} * (w.K / 2)) + block);
  return words;
}
__device__ inline uint32_t WordAt(const uint4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

// Lane t of four multiplies block t of the four: which factors stand in which place of mma.sync is
// free, as long as those of x stand in the same.
template <typename T, int kTiles>
__device__ void WideStep(const ThinProblem& p, int step, int row, const WideWords& words,
                         const int (&zero)[2], ThinSums<kTiles>* sums) {
  const int block = 4 * step + (threadIdx.x & 3);
  const bool is_there = block * w4::kFactors < p.w.K;
#pragma unroll
  for (int j = 0; j < kTiles; ++j) {
    uint4 x[4] = {};
    if (is_there && row + 8 * j < p.rows) {
      const auto* from = reinterpret_cast<const uint4*>(static_cast<const uint16_t*>(p.x) +
                                                        int64_t{row + 8 * j} * p.w.K) +
                         4 * block;
#pragma unroll
      for (int i = 0; i < 4; ++i) x[i] = from[i];
    }
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      const uint32_t low = WordAt(words.of_row[0], s), high = WordAt(words.of_row[1], s);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t a[4] = {
            LessZero(T(), low, 2 * h, zero[0]), LessZero(T(), high, 2 * h, zero[1]),
            LessZero(T(), low, 2 * h + 1, zero[0]), LessZero(T(), high, 2 * h + 1, zero[1])};
        MultiplyAdd<kOperandOf<T>>(sums->part[j], a, WordAt(x[2 * h], s), WordAt(x[2 * h + 1], s));
      }
    }
  }
}

// Sums of the block's warps, in their order, rounded.
template <typename T, int kTiles>
__device__ void StoreThin(const ThinProblem& p, int first_row, const ThinSums<kTiles>& sums) {
  __shared__ float shared[kThinWarps][kTiles * 128];
  const int thread = threadIdx.x, lane = thread & 31, warp = thread / 32;
#pragma unroll
  for (int j = 0; j < kTiles; ++j)
#pragma unroll
    for (int c = 0; c < 4; ++c) shared[warp][(j * 32 + lane) * 4 + c] = sums.total[j][c];
  __syncthreads();
  for (int i = thread; i < kTiles * 128; i += kThinWarps * 32) {
    const int column = i % 16, m = i / 16;
    const int from = m % 8 / 2 + column % 8 * 4, c = m % 2 + column / 8 * 2;
    const int row = first_row + m, n = blockIdx.x * kThinColumns + column;
    if (row >= p.rows || n >= p.w.N) continue;
    float sum = 0;
    for (int w = 0; w < kThinWarps; ++w) sum += shared[w][(m / 8 * 32 + from) * 4 + c];
    if (p.bias) sum += Widen(static_cast<const T*>(p.bias)[n]);
    static_cast<T*>(p.out)[int64_t{row} * p.w.N + n] = Narrow<T>(sum);
  }
}

template <typename T, int kTiles, bool kWide>
__global__ __launch_bounds__(kThinWarps *
                             32) void MultiplyThinW4(const __grid_constant__ ThinProblem p) {
  constexpr int kDepth = (kWide ? 4 : 1) * w4::kFactors;
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  const int first_row = blockIdx.y * 8 * kTiles, row = first_row + lane / 4;
  const int column = blockIdx.x * kThinColumns + lane / 4;
  const int n[2] = {Lesser(column, p.w.N - 1), Lesser(column + 8, p.w.N - 1)};
  const int steps = (p.w.K + kDepth - 1) / kDepth, each = (steps + kThinWarps - 1) / kThinWarps;
  const int begin = Lesser(warp * each, steps), end = Lesser(begin + each, steps);
  ThinSums<kTiles> sums = {};
  int group = -1, zero[2] = {};
  WideWords next = {};
  if (kWide && begin < end) next = ReadWide(p.w, begin, n);
  for (int step = begin; step < end; ++step) {
    if (const int mine = GroupOf(p.w, step * kDepth); mine != group) {
      if (group >= 0) sums.EndGroup(ScaleOf(p.w, group, n[0]), ScaleOf(p.w, group, n[1]));
      group = mine;
      zero[0] = ZeroOf(p.w, group, n[0]), zero[1] = ZeroOf(p.w, group, n[1]);
    }
    if constexpr (kWide) {
      const WideWords words = next;
      if (step + 1 < end) next = ReadWide(p.w, step + 1, n);
      WideStep<T, kTiles>(p, step, row, words, zero, &sums);
    } else {
      NarrowStep<T, kTiles>(p, step, row, n, zero, &sums);
    }
  }
  if (group >= 0) sums.EndGroup(ScaleOf(p.w, group, n[0]), ScaleOf(p.w, group, n[1]));
  StoreThin<T, kTiles>(p, first_row, sums);
}

template <typename T, int kTiles>
int32_t RunThinTiles(AnyopCall* call, const ThinProblem& p) {
  const bool wide = p.w.aligned && reinterpret_cast<uintptr_t>(p.x) % 16 == 0 &&
                    (p.w.group % 128 == 0 || p.w.group >= p.w.K);
  const Launch launch{dim3(static_cast<unsigned>(CeilDiv(p.w.N, kThinColumns)),
                           static_cast<unsigned>(CeilDiv(p.rows, 8 * kTiles))),
                      dim3(kThinWarps * 32), 0};
  return wide ? launch.Run(call, MultiplyThinW4<T, kTiles, true>, p)
              : launch.Run(call, MultiplyThinW4<T, kTiles, false>, p);
}

constexpr int kMostThinRows = 32;

template <typename T>
int32_t RunThin(AnyopCall* call, const ThinProblem& p) {
  if (p.rows <= 8) return RunThinTiles<T, 1>(call, p);
  return p.rows <= 16 ? RunThinTiles<T, 2>(call, p) : RunThinTiles<T, 4>(call, p);
}

}  // namespace
}  // namespace anyop::cuda
