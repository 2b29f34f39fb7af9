// SPDX-License-Identifier: Apache-2.0
// The gradients of grouped_linear from Ampere on, in float16 and bfloat16: tiles of 128 x 128 by
// mma.sync, any shape and start.
//
// As ops/linear/tile_mma.h, but of operands whose terms lie in columns: such a tile is 64 terms of
// 128 columns, two halves of 64 rows of 128 bytes, and fragments are transposed as they are loaded.
// grad_x = grad_out weight[e] (and a bias, for fused_moe's transposed weights); grad_weight[e] =
// grad_out^T x over the segment's rows, in their order.
#pragma once

#include "../linear/tile_mma.h"

namespace anyop::cuda {
namespace {

// The problems of RunGradients. kAdds: results are float32 and are added to what is there, but
// where an expert has no rows.
template <Operand kType, bool kOfWeight, bool kAdds = false>
__global__ __launch_bounds__(256) void MultiplyBackward(const __grid_constant__ TileProblem p,
                                                        const bool aligned) {
  using Shape = MmaShape<kType, TileForm::kPlain>;
  const uint32_t ring = DynamicSharedAddress();
  const int thread = threadIdx.x, lane = thread & 31, warp = thread / 32;
  const int my_row = warp / 4 * 64, my_column = warp % 4 * 32;
  const int columns = (p.N + 127) / 128, down = (p.capacity + 127) / 128;
  const auto* const a_data = static_cast<const uint16_t*>(p.x);
  const auto* const b_data = static_cast<const uint16_t*>(p.weight);
  TilePlace place;
  TileWalk walk(p, 128, columns, 16);
  for (int tile = blockIdx.x;; tile += gridDim.x) {
    int depth = p.K;               // terms of a sum
    int64_t a_row = 0, b_row = 0;  // the first term's, of operands whose terms are rows
    if constexpr (kOfWeight) {
      const int expert = tile / (down * columns), at = tile % (down * columns);
      if (expert >= p.experts) break;
      const TilePlace segment = SegmentOf(p, expert);
      place = {expert, at % down * 128, p.capacity, at / down};
      a_row = b_row = segment.row;
      depth = segment.end - segment.row;
    } else {
      if (!walk.Find(tile, &place)) break;
      b_row = int64_t{place.expert} * p.K;
    }
    if (kAdds && depth == 0) continue;
    const int left = place.column * 128, steps = (depth + 63) / 64;
    // 64 terms, rows of `pitch` elements from row `first` on, of 128 columns from `from` on.
    const auto fill_columns = [&](uint32_t to, const uint16_t* data, int64_t first, int terms,
                                  int pitch, int from) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int d = thread / 16 + 16 * i, piece = thread % 16, column = from + 8 * piece;
        const bool is_there = d < terms && column < pitch;
        const uint16_t* at = data + (is_there ? (first + d) * pitch + column : 0);
        FillPiece<kType, TileForm::kPlain>(to + piece / 8 * 8192 + Swizzled(d, piece % 8),
                                           reinterpret_cast<const uint8_t*>(at),
                                           is_there ? pitch - column : 0, aligned);
      }
    };
    const auto fill = [&](int step) {
      if (step < steps) {
        const uint32_t stage = ring + step % Shape::kStages * Shape::kStageBytes;
        const int terms = depth - 64 * step;
        if constexpr (kOfWeight) {
          fill_columns(stage, a_data, a_row + 64 * step, terms, p.capacity, place.row);
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int r = thread / 8 + 32 * i, piece = thread % 8, k = 64 * step + 8 * piece;
            const bool is_there = place.row + r < place.end && k < depth;
            const uint16_t* at = a_data + (is_there ? int64_t{place.row + r} * p.K + k : 0);
            FillPiece<kType, TileForm::kPlain>(stage + Swizzled(r, piece),
                                               reinterpret_cast<const uint8_t*>(at),
                                               is_there ? depth - k : 0, aligned);
          }
        }
        fill_columns(stage + Shape::kTileBytes, b_data, b_row + 64 * step, terms, p.N, left);
      }
      CommitCopies();
    };
    const bool is_mine = place.row + my_row < place.end && left + my_column < p.N;
    float sums[4][4][4] = {};
    __syncthreads();  // nobody reads the tile before
    fill(0);
    fill(1);
    for (int k = 0; k < steps; ++k) {
      WaitForCopies<1>();
      __syncthreads();
      fill(k + 2);
      if (!is_mine) continue;
      const uint32_t x = ring + k % Shape::kStages * Shape::kStageBytes;
#pragma unroll
      for (int h = 0; h < 4; ++h) {
        uint32_t a[4][4], b[2][4];
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          const int row = my_row + 16 * m, column = row + lane / 8 % 2 * 8;
          if constexpr (kOfWeight)
            LoadTransposed(a[m], x + column / 64 * 8192 +
                                     Swizzled(16 * h + lane % 8 + lane / 16 * 8, column % 64 / 8));
          else
            LoadMatrices(a[m], x + Swizzled(row + lane % 16, 2 * h + lane / 16));
        }
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const int column = my_column + 16 * n + lane / 16 * 8;
          LoadTransposed(b[n], x + Shape::kTileBytes + column / 64 * 8192 +
                                   Swizzled(16 * h + lane % 16, column % 64 / 8));
        }
#pragma unroll
        for (int m = 0; m < 4; ++m)
#pragma unroll
          for (int n = 0; n < 4; ++n)
            MultiplyAdd<kType>(sums[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
      }
    }
    WaitForCopies<0>();
    const int64_t above = kOfWeight ? int64_t{place.expert} * p.capacity : 0;
#pragma unroll
    for (int m = 0; m < 4; ++m)
#pragma unroll
      for (int n = 0; n < 4; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = place.row + my_row + 16 * m + i / 2 * 8 + lane / 4;
          const int column = left + my_column + 8 * n + lane % 4 * 2 + i % 2;
          if (row >= place.end || column >= p.N) continue;
          float sum = sums[m][n][i];
          if (!kOfWeight && p.bias) sum += EndOf(p, place.expert, column).bias;
          const int64_t to = (above + row) * p.N + column;
          if constexpr (kAdds) sum += static_cast<const float*>(p.out)[to];
          StoreOne(p.result, p.out, to, sum);
        }
  }
  if constexpr (!kOfWeight) walk.ZeroRest(thread, 256);
}

template <auto kKernel, typename... Arguments>
int32_t RunBackward(AnyopCall* call, int64_t tiles, Arguments... arguments) {
  constexpr int kBytes = MmaShape<Operand::kFloat16, TileForm::kPlain>::kSharedBytes;
  if (int32_t status = AllowShared<kKernel>(call, kBytes)) return status;
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  const int64_t most = 2 * limits.multiprocessors;
  const Launch launch{dim3(static_cast<unsigned>(tiles < most ? tiles : most)), dim3(256), kBytes};
  return launch.Run(call, kKernel, arguments...);
}

}  // namespace
}  // namespace anyop::cuda
