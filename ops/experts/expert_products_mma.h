// SPDX-License-Identifier: Apache-2.0
// The products of fused_moe and its gradient on CUDA: float16 and bfloat16 by mma.sync
// (../linear/tile_mma.h, ../grouped/grouped_backward_mma.h), float32 on the ordinary units, to
// float32's precision: a block takes 64 x 64 results, a thread 4 x 4, of 16 terms at a time.
#pragma once

#include "../grouped/grouped_backward_mma.h"
#include "weight_form.h"

namespace anyop::cuda {
namespace {

// Sums are in the order of terms.
template <WeightForm kForm>
__global__ __launch_bounds__(256) void MultiplyFloats(const __grid_constant__ TileProblem p) {
  constexpr bool kGradient = kForm == WeightForm::kGradient;
  constexpr int kSide = 64, kDepth = 16;
  __shared__ float4 a[kDepth][kSide / 4 + 1], b[kDepth][kSide / 4 + 1];
  const int thread = threadIdx.x, columns = (p.N + kSide - 1) / kSide;
  const int down = (p.capacity + kSide - 1) / kSide;
  const auto* const x = static_cast<const float*>(p.x);
  const auto* const weight = static_cast<const float*>(p.weight);
  TilePlace place;
  TileWalk walk(p, kSide, columns, 16);
  for (int tile = blockIdx.x;; tile += gridDim.x) {
    int depth = p.K;
    int64_t first = 0;  // row of the first term, where terms are rows
    if constexpr (kGradient) {
      const int expert = tile / (down * columns), at = tile % (down * columns);
      if (expert >= p.experts) break;
      const TilePlace segment = SegmentOf(p, expert);
      place = {expert, at % down * kSide, p.capacity, at / down};
      first = segment.row;
      depth = segment.end - segment.row;
    } else {
      if (!walk.Find(tile, &place)) break;
      first = int64_t{place.expert} * p.K;
    }
    const int left = place.column * kSide;
    float sums[4][4] = {};
    for (int from = 0; from < depth; from += kDepth) {
      __syncthreads();  // nobody reads the terms before
#pragma unroll
      for (int j = 0; j < kSide * kDepth / 256; ++j) {
        const int i = thread + 256 * j;
        const auto fill = [&](auto& to, bool in_rows, int64_t begin, int end, int64_t pitch,
                              const float* data) {
          const int term = in_rows ? i % kDepth : i / kSide, at = in_rows ? i / kDepth : i % kSide;
          const int64_t index = in_rows ? (begin + at) * pitch + from + term
                                        : (first + from + term) * pitch + begin + at;
          const bool is_there = from + term < depth && at < end;
          reinterpret_cast<float*>(to[term])[at] = is_there ? data[index] : 0;
        };
        fill(a, !kGradient, place.row, place.end - place.row, kGradient ? p.capacity : p.K, x);
        constexpr bool kInRows = kForm == WeightForm::kRows;
        fill(b, kInRows, kInRows ? int64_t{place.expert} * p.N + left : left, p.N - left,
             kInRows ? p.K : p.N, weight);
      }
      __syncthreads();
#pragma unroll
      for (int term = 0; term < kDepth; ++term) {
        const float4 rows = a[term][thread / 16], of = b[term][thread % 16];
        const float down_by[4] = {rows.x, rows.y, rows.z, rows.w};
        const float across[4] = {of.x, of.y, of.z, of.w};
#pragma unroll
        for (int m = 0; m < 4; ++m)
#pragma unroll
          for (int n = 0; n < 4; ++n) sums[m][n] = fmaf(down_by[m], across[n], sums[m][n]);
      }
    }
    const int64_t above = kGradient ? int64_t{place.expert} * p.capacity : 0;
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int row = place.row + thread / 16 * 4 + m, column = left + thread % 16 * 4 + n;
        if (row >= place.end || column >= p.N) continue;
        const float bias = EndOf(p, place.expert, column).bias;
        StoreOne(p.result, p.out, (above + row) * p.N + column, sums[m][n] + bias);
      }
  }
  if constexpr (!kGradient) walk.ZeroRest(thread, 256);
}

// Of elements T.
template <typename T>
struct Products {
  using Result = float;  // of rows that are added up for tokens

  static int32_t Accept(AnyopCall*, const void*, const void*, int64_t, int64_t) { return kAnyopOk; }

  // p as kForm says. Rows of no segment become 0.
  template <WeightForm kForm>
  static int32_t Multiply(AnyopCall* call, const TileProblem& p) {
    constexpr bool kGradient = kForm == WeightForm::kGradient;
    if (p.N == 0 || (kGradient ? p.capacity : p.rows) == 0) return kAnyopOk;
    const auto tiles_of = [&](int side) {
      const int64_t down =
          kGradient ? p.experts * CeilDiv(p.capacity, side) : CeilDiv(p.rows, side) + p.experts;
      return down * CeilDiv(p.N, side);
    };
    if constexpr (std::is_same_v<T, float>) {
      Limits limits;
      if (int32_t status = ReadLimits(call, &limits)) return status;
      const int64_t tiles = tiles_of(64), most = int64_t{4} * limits.multiprocessors;
      const Launch launch{dim3(static_cast<unsigned>(tiles < most ? tiles : most)), dim3(256)};
      return launch.Run(call, MultiplyFloats<kForm>, p);
    } else if constexpr (kForm == WeightForm::kRows) {
      return RunByMma<kOperandOf<T>, TileForm::kPlain>(call, p);
    } else {
      const int inner = kGradient ? p.capacity : p.K;
      const bool aligned =
          p.N % 8 == 0 && inner % 8 == 0 && IsAligned(p.x, 16) && IsAligned(p.weight, 16);
      return RunBackward<MultiplyBackward<kOperandOf<T>, kGradient>>(call, tiles_of(128), p,
                                                                     aligned);
    }
  }

  // Whether MultiplyGated takes the rows of p.order itself.
  static bool Gathers(AnyopCall*, const TileProblem&) { return false; }
  // p as TileProblem has it.
  static int32_t MultiplyGated(AnyopCall* call, const TileProblem& p) {
    return RunByMma<kOperandOf<T>, TileForm::kGated>(call, p);
  }
};

}  // namespace
}  // namespace anyop::cuda
