// SPDX-License-Identifier: Apache-2.0
// Products on every GPU from Ampere on: tiles of 128 x 128 by mma.sync, any shape and alignment.
//
// 8 warps, 2 x 4, of 64 x 32 results each. A stage is 128 bytes of k of 128 rows of x and 128 of
// weight; three of them, filled by cp.async where rows are multiples of 16 bytes, else element by
// element. 8-bit floats are widened to float16 on their way, weights of 4 bits to x's type. Of a
// gated product every other 8 columns of the tile are the gate's, so that a thread holds both
// halves of a result. No sum is split: a row's bits depend neither on other rows nor on their
// number.
#pragma once

#include <type_traits>

#include "anyop/cuda/mma.h"
#include "tile_problem.h"

namespace anyop::cuda {
namespace {

template <Operand kType, TileForm kForm>
struct MmaShape {
  static constexpr bool kWidens = kType == Operand::kE4M3 || kType == Operand::kE5M2;
  static constexpr bool kScaled = kForm == TileForm::kBlocks, kGated = kForm == TileForm::kGated;
  static constexpr bool kFourBits = kForm == TileForm::kFourBits;
  static constexpr int kRows = 128, kColumns = 128, kResultColumns = kGated ? 64 : 128;
  static constexpr int kDepth = kType == Operand::kInt8 ? 128 : 64, kStages = 3, kThreads = 256;
  static constexpr int kPiece = kDepth / 8;  // elements of 16 bytes in shared memory
  static constexpr uint32_t kTileBytes = 128 * 128, kStageBytes = 2 * kTileBytes;
  static constexpr uint32_t kSharedBytes = kStages * kStageBytes;
};

// 16 bytes of a tile: kPiece elements from `from` on, of which `left` are there.
template <Operand kType, TileForm kForm>
__device__ void FillPiece(uint32_t to, const uint8_t* from, int left, bool aligned) {
  using Shape = MmaShape<kType, kForm>;
  if (aligned && !Shape::kWidens) return CopyAside(to, from, left > 0);
  uint32_t words[4] = {};
  if constexpr (Shape::kWidens) {
    uint32_t bytes[2] = {};
    if (aligned && left > 0) {
      const uint2 read = *reinterpret_cast<const uint2*>(from);
      bytes[0] = read.x, bytes[1] = read.y;
    } else {
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (i < left) bytes[i / 4] |= uint32_t{from[i]} << 8 * (i % 4);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) words[i] = WidenTwo<kType>(bytes[i / 2] >> 16 * (i % 2) & 0xffff);
  } else if constexpr (kType == Operand::kInt8) {
#pragma unroll
    for (int i = 0; i < 16; ++i)
      if (i < left) words[i / 4] |= uint32_t{from[i]} << 8 * (i % 4);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      if (i < left)
        words[i / 2] |= uint32_t{reinterpret_cast<const uint16_t*>(from)[i]} << 16 * (i % 2);
  }
  StoreShared(to, words);
}

// The same of weights of 4 bits: those of row n from k on.
template <Operand kType>
__device__ void FillUnpacked(uint32_t to, const FourBits& w, int n, int k, bool is_there) {
  using T = std::conditional_t<kType == Operand::kFloat16, __half, __nv_bfloat16>;
  uint32_t words[4] = {};
  if (is_there) UnpackEight<T>(w, n, k, words);
  StoreShared(to, words);
}

template <Operand kType, TileForm kForm>
__global__ __launch_bounds__(256) void MultiplyByMma(const __grid_constant__ TileProblem p,
                                                     const int group, const bool aligned) {
  using Shape = MmaShape<kType, kForm>;
  using Sum = typename SumOf<kType>::Type;
  const uint32_t ring = DynamicSharedAddress();
  const int thread = threadIdx.x, lane = thread & 31, warp = thread / 32;
  const int my_row = warp / 4 * 64, my_column = warp % 4 * 32;
  const int columns = (p.N + Shape::kResultColumns - 1) / Shape::kResultColumns;
  const int steps = (p.K + Shape::kDepth - 1) / Shape::kDepth;
  constexpr int kBytes = BytesOf(kType);
  TilePlace place;
  TileWalk walk(p, Shape::kRows, columns, group);
  for (int tile = blockIdx.x; walk.Find(tile, &place); tile += gridDim.x) {
    const int left = place.column * Shape::kResultColumns;
    const auto fill = [&](int step) {
      if (step < steps) {
        const uint32_t stage = ring + step % Shape::kStages * Shape::kStageBytes;
        const int piece = thread & 7, k = step * Shape::kDepth + piece * Shape::kPiece;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int r = thread / 8 + 32 * i, row = place.row + r;
          const bool is_there = row < place.end && k < p.K;
          const auto* x =
              static_cast<const uint8_t*>(p.x) + (is_there ? (int64_t{row} * p.K + k) * kBytes : 0);
          FillPiece<kType, kForm>(stage + Swizzled(r, piece), x, is_there ? p.K - k : 0, aligned);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int r = thread / 8 + 32 * i;
          const int n = left + (Shape::kGated ? r / 16 * 8 + r % 8 : r);
          const bool is_there = n < p.N && k < p.K;
          if constexpr (Shape::kFourBits) {
            FillUnpacked<kType>(stage + Shape::kTileBytes + Swizzled(r, piece), p.four_bits, n, k,
                                is_there);
            continue;
          }
          const int64_t row = Shape::kGated
                                  ? int64_t{2} * place.expert * p.N + n + (r / 8 % 2 ? p.N : 0)
                                  : int64_t{place.expert} * p.N + n;
          const auto* w =
              static_cast<const uint8_t*>(p.weight) + (is_there ? (row * p.K + k) * kBytes : 0);
          FillPiece<kType, kForm>(stage + Shape::kTileBytes + Swizzled(r, piece), w,
                                  is_there ? p.K - k : 0, aligned);
        }
      }
      CommitCopies();
    };
    const int warp_column = Shape::kGated ? my_column / 2 : my_column;
    const bool is_there = place.row + my_row < place.end && left + warp_column < p.N;
    Sum sums[4][4][4] = {};
    Sum part[Shape::kScaled ? 4 : 1][4][4] = {};
    __syncthreads();  // nobody reads the tile before
    fill(0);
    fill(1);
    for (int k = 0; k < steps; ++k) {
      WaitForCopies<1>();
      __syncthreads();
      fill(k + 2);
      if (!is_there) continue;
      const uint32_t x = ring + k % Shape::kStages * Shape::kStageBytes;
#pragma unroll
      for (int h = 0; h < 4; ++h) {
        uint32_t a[4][4], b[2][4];
#pragma unroll
        for (int m = 0; m < 4; ++m)
          LoadMatrices(a[m], x + Swizzled(my_row + 16 * m + lane % 16, 2 * h + lane / 16));
#pragma unroll
        for (int n = 0; n < 2; ++n)
          LoadMatrices(b[n], x + Shape::kTileBytes +
                                 Swizzled(my_column + 16 * n + lane % 8 + lane / 16 * 8,
                                          2 * h + lane / 8 % 2));
#pragma unroll
        for (int m = 0; m < 4; ++m)
#pragma unroll
          for (int n = 0; n < 4; ++n) {
            if constexpr (Shape::kScaled)
              MultiplyAdd<kType>(part[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
            else
              MultiplyAdd<kType>(sums[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1]);
          }
      }
      if constexpr (Shape::kScaled) {
        if (k % 2 == 0 && k + 1 < steps) continue;
        const float* x_scale = p.x_scale + place.expert * p.x_scale_expert;
        const float by = p.weight_scale[place.expert * p.weight_scale_expert +
                                        left / 128 * p.weight_scale_row + k / 2 * p.weight_scale_k];
#pragma unroll
        for (int m = 0; m < 4; ++m)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int row =
                Lesser(place.row + my_row + 16 * m + 8 * half + lane / 4, place.end - 1);
            const float scale = by * x_scale[row * p.x_scale_row + k / 2 * p.x_scale_k];
#pragma unroll
            for (int n = 0; n < 4; ++n)
#pragma unroll
              for (int c = 2 * half; c < 2 * half + 2; ++c) {
                sums[m][n][c] = MulAdd(part[m][n][c], scale, sums[m][n][c]);
                part[m][n][c] = 0;
              }
          }
      }
    }
    WaitForCopies<0>();
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        if (Shape::kGated && n % 2) continue;
        const int at = Shape::kGated ? my_column / 2 + n / 2 * 8 : my_column + 8 * n;
        const int column = left + at + lane % 4 * 2 + c;
        if (column >= p.N) continue;
        const ColumnEnd end = EndOf(p, place.expert, column);
#pragma unroll
        for (int m = 0; m < 4; ++m)
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const int64_t row = place.row + my_row + 16 * m + 8 * half + lane / 4;
            if (row >= place.end) continue;
            const float sum = static_cast<float>(sums[m][n][2 * half + c]);
            if constexpr (Shape::kGated) {
              const float other = static_cast<float>(sums[m][(n + 1) & 3][2 * half + c]);
              if (p.pre) {
                StoreOne(p.result, p.pre, row * 2 * p.N + column, sum);
                StoreOne(p.result, p.pre, row * 2 * p.N + p.N + column, other);
              }
              StoreOne(p.result, p.out, row * p.N + column, Activate(p.activation, sum) * other);
            } else {
              StoreOne(p.result, p.out, row * p.N + column, Finish(sum, RowScale(p, row), end));
            }
          }
      }
  }
  walk.ZeroRest(thread, Shape::kThreads);
}

template <Operand kType, TileForm kForm>
int32_t RunByMma(AnyopCall* call, const TileProblem& p) {
  using Shape = MmaShape<kType, kForm>;
  if (p.rows == 0 || p.N == 0) return kAnyopOk;
  constexpr auto kernel = MultiplyByMma<kType, kForm>;
  if (int32_t status = AllowShared<kernel>(call, Shape::kSharedBytes)) return status;
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  const int bytes = Shape::kWidens ? 8 : 16;
  const bool aligned = int64_t{p.K} * BytesOf(kType) % bytes == 0 && IsAligned(p.x, bytes) &&
                       IsAligned(p.weight, bytes);
  const bool segments = p.offsets || p.counts;
  const int64_t tiles = (CeilDiv(p.rows, Shape::kRows) + (segments ? p.experts : 0)) *
                        CeilDiv(p.N, Shape::kResultColumns);
  const int64_t most = 2 * limits.multiprocessors;
  const Launch launch{dim3(static_cast<unsigned>(tiles < most ? tiles : most)),
                      dim3(Shape::kThreads), Shape::kSharedBytes};
  return launch.Run(call, kernel, p, 16, aligned);
}

}  // namespace
}  // namespace anyop::cuda
