// SPDX-License-Identifier: Apache-2.0
// Attention on Hopper: what a warpgroup does with its 64 queries and a tile of keys.
#pragma once

#include "attention_mma.h"
#include "attention_sm90_tile.h"

namespace anyop::cuda {
namespace {

// Products of queries and keys to scores as multiples of ln 2: times scale; with a softcap by Cap.
struct HopperFactors {
  float scale, steep, cap, cap_twice;
};
inline HopperFactors FactorsOf(const AttentionView& view) {
  const double log2e = 1.44269504088896340736, cap = view.softcap;
  if (!(cap > 0)) return {static_cast<float>(view.scale * log2e), 0, 0, 0};
  return {1, static_cast<float>(view.scale * 2 * log2e / cap), static_cast<float>(cap * log2e),
          static_cast<float>(cap * 2 * log2e)};
}

// Row `half` of a thread's sums times share, in pieces of 16 bytes: of 32 columns a lane has those
// of its two in each eight, and gets eight in a row from the four lanes of its row.
template <typename T, int kCount>
__device__ void WriteRow(const float (&sums)[kCount], T* to, int half, float share, int features) {
  const int lane = threadIdx.x % 4;
  const bool odd = lane & 1, high = lane & 2;
#pragma unroll
  for (int j = 0; j < kCount / 16; ++j) {
    uint32_t w[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* two = sums + 16 * j + 4 * i + 2 * half;
      w[i] = share == 0 ? 0 : NarrowTwo(T(), two[0] * share, two[1] * share);
    }
    uint32_t a = __shfl_xor_sync(~0u, odd ? w[0] : w[1], 1);
    uint32_t b = __shfl_xor_sync(~0u, odd ? w[2] : w[3], 1);
    if (odd) {
      w[0] = a, w[2] = b;
    } else {
      w[1] = a, w[3] = b;
    }
    a = __shfl_xor_sync(~0u, high ? w[0] : w[2], 2);
    b = __shfl_xor_sync(~0u, high ? w[1] : w[3], 2);
    if (high) {
      w[0] = a, w[1] = b;
    } else {
      w[2] = a, w[3] = b;
    }
    const int column = 32 * j + 8 * lane;
    if (to && column < features)
      *reinterpret_cast<uint4*>(to + column) = make_uint4(w[0], w[1], w[2], w[3]);
  }
}

// What a thread of a warpgroup has of its 64 queries: of rows `row` and row + 8.
template <typename T, typename Tile>
struct HopperRows {
  static constexpr Operand kType = kOperandOf<T>;
  float out[Tile::kE / 2], scores[Tile::kKeys / 2];
  uint32_t weights[Tile::kKeys / 4];
  uint32_t kept[Tile::kKeepsQueries ? Tile::kD / 4 : 1];  // queries, as a left side
  float max[2], sum[2], factor[2];

  // Scores of 64 queries, rows of panels of Tile::kRows, with a tile of keys.
  __device__ void Multiply(uint32_t q, uint32_t k) {
    const uint64_t all_queries = TileOf(q), all_keys = TileOf(k);
    FenceProducts();
#pragma unroll
    for (int i = 0; i < Tile::kD / 16; ++i) {
      const uint64_t k_tile = MovedBy(all_keys, i / 4 * Tile::kKeyPanel / 16 + 2 * (i % 4));
      if constexpr (Tile::kKeepsQueries)
        Product<Tile::kKeys>::template AddRegisters<kType, 0>(scores, kept + 4 * i, k_tile, i);
      else
        Product<Tile::kKeys>::template Add<kType>(
            scores, MovedBy(all_queries, i / 4 * Tile::kQueryPanel / 16 + 2 * (i % 4)), k_tile, i);
    }
    CommitProducts();
  }
  __device__ void Keep(uint32_t q, int thread) {
    const uint32_t row = thread / 32 * 16 + thread % 16, half = thread % 32 / 16;
#pragma unroll
    for (int i = 0; i < Tile::kD / 16; ++i) {
      uint32_t four[4];
      LoadMatrices(four, q + i / 4 * Tile::kQueryPanel + Swizzled(row, i % 4 * 2 + half));
#pragma unroll
      for (int w = 0; w < 4; ++w) kept[4 * i + w] = four[w];
    }
  }
  __device__ void AddValues(uint32_t v, bool is_first) {
    const uint64_t all_values = PanelsOf(v, Tile::kKeyPanel);
    FenceProducts();
#pragma unroll
    for (int i = 0; i < Tile::kKeys / 16; ++i)
      Product<Tile::kE>::template AddRegisters<kType, 1>(
          out, weights + 4 * i, MovedBy(all_values, 128 * i), i > 0 || !is_first);
    CommitProducts();
  }
  // Products to scores as multiples of ln 2.
  __device__ void Cap(const HopperFactors& by) {
#pragma unroll
    for (float& score : scores)  // tanh(x) = 1 - 2 / (exp(2 x) + 1)
      score = MulAdd(by.cap_twice, -Reciprocal(PowerOfTwo(score * by.steep) + 1), by.cap);
  }
  // t: the key of the thread's first score; first, end: the keys that its rows see.
  __device__ void Hide(int t, int2 first, int2 end) {
#pragma unroll
    for (int i = 0; i < Tile::kKeys / 2; ++i) {
      const int key = t + i / 4 * 8 + i % 2;
      const bool is_seen =
          i / 2 % 2 ? key >= first.y && key < end.y : key >= first.x && key < end.x;
      if (!is_seen) scores[i] = -INFINITY;
    }
  }
  // The greatest score of a row in this thread, by four chains that do not wait for one another.
  __device__ float Most(int r) const {
    float most[4];
#pragma unroll
    for (int i = 0; i < Tile::kKeys / 4; ++i) {
      const float score = scores[i / 2 * 4 + 2 * r + i % 2];
      most[i % 4] = i < 4 ? score : fmaxf(most[i % 4], score);
    }
    return fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
  }
  // Scores to weights, which are 2^(scale (score - max)); whether what was summed before is to be
  // multiplied by factor.
  template <bool kFirst>
  __device__ bool Weigh(float scale) {
    float most[2] = {Most(0), Most(1)};
    const auto grow = [&](int r) { return (most[r] - max[r]) * scale > 8; };
    const bool grows = !kFirst && __any_sync(~0u, grow(0) || grow(1));
    if (kFirst || grows) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 1));
        most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 2));
        if (kFirst) {
          max[r] = most[r], sum[r] = 0;
        } else {
          const bool mine = grow(r);
          factor[r] = mine ? PowerOfTwo((max[r] - most[r]) * scale) : 1;
          max[r] = mine ? most[r] : max[r];
          sum[r] *= factor[r];
        }
      }
    }
    float base[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) base[r] = max[r] == -INFINITY ? 0 : max[r] * scale;
#pragma unroll
    for (int i = 0; i < Tile::kKeys / 2; ++i)
      scores[i] = PowerOfTwo(MulAdd(scores[i], scale, -base[i / 2 % 2]));
#pragma unroll
    for (int i = 0; i < Tile::kKeys / 2; ++i) sum[i / 2 % 2] += scores[i];
    return grows;
  }
  __device__ void Narrow() {
#pragma unroll
    for (int i = 0; i < Tile::kKeys / 4; ++i)
      weights[i] = NarrowTwo(T(), scores[2 * i], scores[2 * i + 1]);
  }
  __device__ void Grow() {
#pragma unroll
    for (int i = 0; i < Tile::kE / 2; ++i) out[i] *= factor[i / 2 % 2];
  }
  __device__ void Write(T* to, int half, float share, int features) {
    WriteRow(out, to, half, share, features);
  }
};

// What CleanTile took away, added to the results of `rows` queries that see it, by 128 threads.
template <typename T>
__device__ void AddBadValuesOf(const AttentionView& p, const HopperItem& item, int row, int rows,
                               int thread, const bool* is_empty) {
  const T* v = static_cast<const T*>(p.v) + p.v_steps.At(item.b, item.g, item.k);
  const auto row_of = [&](int t) {
    if (!p.table) return v + t * p.v_steps.row;
    const int page = PageOf(p, item.sequence, t);
    if (!IsPage(p, page)) return static_cast<const T*>(nullptr);
    return static_cast<const T*>(p.v) + p.v_steps.At(page, item.g, t % p.places);
  };
  for (int at = thread; at < rows * p.E; at += 128) {
    const int s = row + at / p.E, e = at % p.E;
    float bad = 0;
    for (int t = item.First(item.top + s); !is_empty[s] && t < item.End(item.top + s); ++t) {
      const T* from = row_of(t);
      const float value = from ? Widen(from[e]) : 0;
      if (!isfinite(value)) bad += value;
    }
    T* to = static_cast<T*>(p.out) + p.out_steps.At(item.b, item.h, item.q + s) + e;
    if (!isfinite(bad)) *to = Narrow<T>(Widen(*to) + bad);
  }
}

}  // namespace
}  // namespace anyop::cuda
