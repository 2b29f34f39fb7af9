// SPDX-License-Identifier: Apache-2.0
// Gradients of attention in float16 and bfloat16 on every GPU from Ampere on, by mma.sync.
//
// A block has 64 rows of its own, 16 for each of its four warps: queries and gradients of results,
// or keys and values; tiles of the others come by cp.async, one ahead. Two products give scores and
// gradients of weights; weights and slopes are rounded to 16 bits for their products with what lies
// in the tile, and all sums stay in registers, in float32. With 256 features a block of keys has
// grad_v or grad_k alone, since registers hold no more.
#pragma once

#include "attention_backward_cuda.h"
#include "attention_mma.h"

namespace anyop::cuda {
namespace {

template <int kFeatures>
struct GradientTile {
  static constexpr int kThreads = 128, kOwn = 64, kOthers = kFeatures <= 64 ? 64 : 32;
  static constexpr int kStages = kFeatures <= 128 ? 2 : 1;
  static constexpr bool kHasBoth = kFeatures <= 128;  // grad_k and grad_v
  static constexpr uint32_t kOwnBytes = kOwn * kFeatures * 2, kOtherBytes = kOthers * kFeatures * 2;
  static constexpr uint32_t kSharedBytes = 2 * kOwnBytes + kStages * 2 * kOtherBytes;
};

// sums[16 x kColumns] = rows `row` on of tile a (64 rows) times tile b (kColumns rows) transposed.
template <typename T, int kFeatures, int kColumns>
__device__ void MultiplyRows(float (&sums)[kColumns / 8][4], uint32_t a, uint32_t b) {
  const uint32_t thread = ComputedHere(threadIdx.x), lane = thread % 32, row = thread / 32 * 16;
#pragma unroll
  for (auto& four : sums)
#pragma unroll
    for (float& sum : four) sum = 0;
#pragma unroll
  for (int h = 0; h < kFeatures / 16; ++h) {
    uint32_t left[4];
    LoadMatrices(left, a + InTile<64>(row + lane % 16, 2 * h + lane / 16));
#pragma unroll
    for (int n = 0; n < kColumns / 16; ++n) {
      uint32_t right[4];
      LoadMatrices(right,
                   b + InTile<kColumns>(16 * n + lane % 8 + lane / 16 * 8, 2 * h + lane / 8 % 2));
      MultiplyAdd<kOperandOf<T>>(sums[2 * n], left, right[0], right[1]);
      MultiplyAdd<kOperandOf<T>>(sums[2 * n + 1], left, right[2], right[3]);
    }
  }
}
// sums[16 x kFeatures] += weights, rounded, times tile b.
template <typename T, int kFeatures, int kColumns>
__device__ void AddRows(float (&sums)[kFeatures / 8][4], const float (&weights)[kColumns / 8][4],
                        uint32_t b) {
  const uint32_t lane = ComputedHere(threadIdx.x) % 32;
#pragma unroll
  for (int n = 0; n < kColumns / 16; ++n) {
    uint32_t left[4];
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const float* two = weights[2 * n + w / 2] + w % 2 * 2;
      left[w] = NarrowTwo(T(), two[0], two[1]);
    }
#pragma unroll
    for (int e = 0; e < kFeatures / 16; ++e) {
      uint32_t right[4];
      LoadTransposed(right, b + InTile<kColumns>(16 * n + lane % 16, 2 * e + lane / 16));
      MultiplyAdd<kOperandOf<T>>(sums[2 * e], left, right[0], right[1]);
      MultiplyAdd<kOperandOf<T>>(sums[2 * e + 1], left, right[2], right[3]);
    }
  }
}

// Mask and slopes for a lane's scores, one after the other, in memory of the thread: rare. row,
// column: of its first. kTurned: rows are keys, columns queries.
template <typename T, int kCount, bool kTurned>
__device__ __attribute__((noinline)) void AddBiases(const GradientView& p,
                                                    const GradientPlace& place, int h, int row,
                                                    int column, float* scores) {
#pragma unroll 1
  for (int i = 0; i < kCount; ++i) {
    const int r = row + i % 4 / 2 * 8, c = column + i / 4 * 8 + i % 2;
    const int s = kTurned ? c : r, t = kTurned ? r : c;
    if (s < place.at.S && t < place.at.T)
      scores[i] += BiasOf<T, float>(p.a, {0, h, place.b}, s, t, place.at.slope_offset);
  }
}

// Scores of 16 rows of a warp and kColumns others; a lane has those of rows lane / 4 (+ 8) and
// columns lane % 4 * 2 (+ 1) of each 8.
template <typename T, int kColumns, bool kTurned>
struct PairScores {
  float weights[kColumns / 8][4], grads[kColumns / 8][4];

  // Products to weights, and gradients of weights to those of products. row, column: the lane's
  // first; bases and deltas: of queries, which are rows 0 and 8, or columns from 0 on; cut: not all
  // are seen by all.
  __device__ void Set(const GradientView& p, const GradientPlace& place, int h, int row, int column,
                      const float* bases, const float* deltas, bool cut) {
    const auto scale = static_cast<float>(p.a.scale);
    float slopes[kColumns / 8][4];
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) weights[n][c] *= scale, slopes[n][c] = 1;
    if (p.a.softcap > 0) {
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          const CappedScore capped = CapScore(p.a, weights[n][c]);
          weights[n][c] = capped.score, slopes[n][c] = capped.slope;
        }
    }
    if (p.a.slopes || p.a.mask_kind != MaskKind::kNone) AddBias(p, place, h, row, column);
    if (cut) Hide(place.at, row, column);
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int query = kTurned ? 8 * n + c % 2 : c / 2 * 8;
        const float weight =
            PowerOfTwo(MulAdd(weights[n][c], 1.44269504088896340736f, -bases[query]));
        weights[n][c] = weight;
        grads[n][c] = SlopeOf(weight, grads[n][c], deltas[query], slopes[n][c]);
      }
  }

 private:
  __device__ void AddBias(const GradientView& p, const GradientPlace& place, int h, int row,
                          int column) {
    float kept[kColumns / 2];
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) kept[i] = weights[i / 4][i % 4];
    AddBiases<T, kColumns / 2, kTurned>(p, place, h, row, column, kept);
#pragma unroll
    for (int i = 0; i < kColumns / 2; ++i) weights[i / 4][i % 4] = kept[i];
  }
  __device__ void Hide(const GradientRange& at, int row, int column) {
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int r = row + c / 2 * 8, other = column + 8 * n + c % 2;
        const int s = kTurned ? other : r, t = kTurned ? r : other;
        if (s >= at.S || t < at.First(s) || t >= at.End(s)) weights[n][c] = -INFINITY;
      }
  }
};

// A warp's 16 rows of a gradient, times scale, by 16-bit numbers.
template <typename T, int kFeatures>
__device__ void WriteGradient(const float (&sums)[kFeatures / 8][4], T* to, int64_t step, int rows,
                              int width, float scale) {
  const int lane = threadIdx.x % 32, row = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (row + 8 * half >= rows) continue;
    T* at = to + (row + 8 * half) * step;
#pragma unroll
    for (int n = 0; n < kFeatures / 8; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int column = 8 * n + lane % 4 * 2 + c;
        if (column < width) at[column] = Narrow<T>(sums[n][2 * half + c] * scale);
      }
  }
}

// What tiles are made of: queries and gradients of results, or keys and values.
struct PairOfRows {
  const void *first, *second;
  Steps first_steps, second_steps;
  int first_width, second_width;
  bool first_aligned, second_aligned;
};
__device__ inline PairOfRows QueriesOf(const GradientView& p) {
  return {p.a.q, p.grad_out, p.a.q_steps,   p.grad_out_steps,
          p.a.D, p.a.E,      p.a.q_aligned, p.grad_out_aligned};
}
__device__ inline PairOfRows KeysOf(const GradientView& p) {
  return {p.a.k, p.a.v, p.a.k_steps, p.a.v_steps, p.a.D, p.a.E, p.a.k_aligned, p.a.v_aligned};
}
// Two tiles side by side; rows: that are there.
template <typename T, int kRows, int kFeatures>
__device__ void FillPair(uint32_t to, const PairOfRows& x, int64_t b, int h, int64_t row,
                         int rows) {
  FillTile<kRows, kFeatures>(to, static_cast<const T*>(x.first) + x.first_steps.At(b, h, row),
                             x.first_steps.row, rows, x.first_width, x.first_aligned);
  FillTile<kRows, kFeatures>(to + kRows * kFeatures * 2,
                             static_cast<const T*>(x.second) + x.second_steps.At(b, h, row),
                             x.second_steps.row, rows, x.second_width, x.second_aligned);
}

// ---- grad_q ----

// Of a tile of queries, whose pair of tiles lies at `queries`.
template <typename T, int kFeatures>
__device__ __forceinline__ void GradeTileOfQueries(const GradientView& p,
                                                   const GradientPlace& place, uint32_t queries,
                                                   const float* bases, const float* deltas) {
  using Tile = GradientTile<kFeatures>;
  constexpr int kKeys = Tile::kOthers, kRows = Tile::kOwn;
  __shared__ bool is_bad;
  const GradientRange& at = place.at;
  const int lane = threadIdx.x % 32, row = static_cast<int>(threadIdx.x) / 32 * 16 + lane / 4;
  const int top = place.tile * kRows, rows = std::min(at.S - top, kRows), g = place.h / p.a.group;
  const uint32_t others = queries + 2 * Tile::kOwnBytes;
  const int first = at.First(top), end = at.End(top + rows - 1);
  const int all_first = at.First(top + rows - 1), all_end = at.End(top);
  const auto fill = [&](int t, int stage) {
    FillPair<T, kKeys, kFeatures>(others + stage * 2 * Tile::kOtherBytes, KeysOf(p), place.b, g,
                                  at.k + t, at.T - t);
    CommitCopies();
  };
  FillPair<T, kRows, kFeatures>(queries, QueriesOf(p), place.b, place.h, at.q + top, rows);
  CommitCopies();
  if (Tile::kStages == 2 && first < end) fill(first, 0);
  float sums[kFeatures / 8][4] = {};
  PairScores<T, kKeys, false> pairs;
  for (int t = first, stage = 0; t < end; t += kKeys, stage ^= Tile::kStages - 1) {
    const uint32_t keys = others + stage * 2 * Tile::kOtherBytes;
    if (Tile::kStages == 1) {
      __syncthreads();  // nobody reads the tile before
      fill(t, 0);
    }
    WaitForCopies<0>();
    __syncthreads();
    if (Tile::kStages == 2 && t + kKeys < end) fill(t + kKeys, stage ^ 1);
    const bool cut = t < all_first || t + kKeys > all_end;
    MultiplyRows<T, kFeatures, kKeys>(pairs.weights, queries, keys);
    MultiplyRows<T, kFeatures, kKeys>(pairs.grads, queries + Tile::kOwnBytes,
                                      keys + Tile::kOtherBytes);
    pairs.Set(p, place, place.h, top + row, t + lane % 4 * 2, bases + row, deltas + row, cut);
    if (cut) {  // keys that are not finite show by their weights, and nowhere else
      __syncthreads();
      CleanTile<kKeys, kFeatures, T>(keys, threadIdx.x, 0, &is_bad);
      __syncthreads();
    }
    AddRows<T, kFeatures, kKeys>(sums, pairs.grads, keys);
  }
  WaitForCopies<0>();
  T* to = static_cast<T*>(p.grad_q) + p.grad_q_steps.At(place.b, place.h, at.q + top);
  WriteGradient<T, kFeatures>(sums, to, p.grad_q_steps.row, rows, p.a.D,
                              static_cast<float>(p.a.scale));
}

template <typename T, int kFeatures, bool kPacked>
__global__ __launch_bounds__(128) void GradeQueries(const __grid_constant__ GradientView p) {
  constexpr int kRows = GradientTile<kFeatures>::kOwn;
  __shared__ float bases[kRows], deltas[kRows];
  const int64_t item = ItemOf();
  if (item >= p.a.items) return;
  if (!HasOrder<kPacked, 128>(p.a)) {
    const Place of = PlaceOf(p.a, item);
    const int64_t top = int64_t{of.tile} * kRows;
    return FillGradientWithNan<T>(p.grad_q, p.grad_q_steps, 0, of.h, top,
                                  std::min<int64_t>(p.a.S, top + kRows), p.a.D);
  }
  GradientPlace place;
  if (!PlaceQueries<kPacked>(p, item, kRows, &place)) return;
  const int top = place.tile * kRows;
#pragma unroll 1
  for (int r = static_cast<int>(threadIdx.x) / 32; r < kRows; r += 4) {
    const bool is_there = top + r < place.at.S;
    const float delta = is_there ? SetDelta<T>(p, place, top + r) : 0;
    if (threadIdx.x % 32 > 0) continue;
    deltas[r] = delta, bases[r] = is_there ? BaseOf(p, place, place.h, top + r) : 0;
  }
  if (p.grad_q) GradeTileOfQueries<T, kFeatures>(p, place, DynamicSharedAddress(), bases, deltas);
}

// ---- grad_k and grad_v ----

// What a block adds up of its keys: both, or with 256 features the one that blockIdx.z says.
template <typename T, int kFeatures, bool kHasBoth>
struct KeyGradients {
  float k[kFeatures / 8][4] = {}, v[kFeatures / 8][4] = {};
  bool has_k, has_v;

  __device__ explicit KeyGradients(const GradientView& p) : has_k(p.grad_k), has_v(p.grad_v) {}
  template <int kQueries>
  __device__ void Add(const PairScores<T, kQueries, true>& pairs, uint32_t queries,
                      uint32_t grads) {
    if (has_v) AddRows<T, kFeatures, kQueries>(v, pairs.weights, grads);
    if (has_k) AddRows<T, kFeatures, kQueries>(k, pairs.grads, queries);
  }
  __device__ void Write(T* to_k, T* to_v, const GradientView& p, int rows) const {
    const auto scale = static_cast<float>(p.a.scale);
    if (has_k) WriteGradient<T, kFeatures>(k, to_k, p.grad_k_steps.row, rows, p.a.D, scale);
    if (has_v) WriteGradient<T, kFeatures>(v, to_v, p.grad_v_steps.row, rows, p.a.E, 1);
  }
};
template <typename T, int kFeatures>
struct KeyGradients<T, kFeatures, false> {
  float sums[kFeatures / 8][4] = {};
  bool has_k, has_v;

  __device__ explicit KeyGradients(const GradientView& p)
      : has_k(p.grad_k && blockIdx.z == 1), has_v(p.grad_v && blockIdx.z == 0) {}
  template <int kQueries>
  __device__ void Add(const PairScores<T, kQueries, true>& pairs, uint32_t queries,
                      uint32_t grads) {
    if (has_v) {
      AddRows<T, kFeatures, kQueries>(sums, pairs.weights, grads);
    } else {
      AddRows<T, kFeatures, kQueries>(sums, pairs.grads, queries);
    }
  }
  __device__ void Write(T* to_k, T* to_v, const GradientView& p, int rows) const {
    WriteGradient<T, kFeatures>(sums, has_v ? to_v : to_k,
                                has_v ? p.grad_v_steps.row : p.grad_k_steps.row, rows,
                                has_v ? p.a.E : p.a.D, has_v ? 1 : static_cast<float>(p.a.scale));
  }
};

// Of a tile of keys: over tiles of the queries that see one of them, head by head.
template <typename T, int kFeatures>
__device__ __forceinline__ void GradeTileOfKeys(const GradientView& p, const GradientPlace& place) {
  using Tile = GradientTile<kFeatures>;
  constexpr int kQueries = Tile::kOthers, kRows = Tile::kOwn;
  __shared__ float bases[Tile::kStages][kQueries], deltas[Tile::kStages][kQueries];
  KeyGradients<T, kFeatures, Tile::kHasBoth> sums(p);
  if (!sums.has_k && !sums.has_v) return;
  const GradientRange& at = place.at;
  const int thread = threadIdx.x, lane = thread % 32, row = thread / 32 * 16 + lane / 4;
  const int top = place.tile * kRows, rows = std::min(at.T - top, kRows), column = lane % 4 * 2;
  const int first = at.FirstQuery(top), end = at.EndQuery(top + rows - 1);
  const int all_first = at.FirstQuery(top + rows - 1), all_end = at.EndQuery(top);
  const int each = end > first ? (end - first + kQueries - 1) / kQueries : 0;
  const int count = each * p.a.group;
  const uint32_t keys = DynamicSharedAddress(), others = keys + 2 * Tile::kOwnBytes;
  const auto head_of = [&](int n) { return place.h * p.a.group + n / each; };
  const auto query_of = [&](int n) { return first + n % each * kQueries; };
  const auto fill = [&](int n, int stage) {
    const int h = head_of(n), s = query_of(n);
    FillPair<T, kQueries, kFeatures>(others + stage * 2 * Tile::kOtherBytes, QueriesOf(p), place.b,
                                     h, at.q + s, at.S - s);
    CommitCopies();
    if (thread >= kQueries) return;
    const bool is_there = s + thread < at.S;
    bases[stage][thread] = is_there ? BaseOf(p, place, h, s + thread) : 0;
    deltas[stage][thread] = is_there ? *DeltaOf(p, place, h, s + thread) : 0;
  };
  FillPair<T, kRows, kFeatures>(keys, KeysOf(p), place.b, place.h, at.k + top, rows);
  CommitCopies();
  if (Tile::kStages == 2 && count > 0) fill(0, 0);
  PairScores<T, kQueries, true> pairs;
  for (int n = 0, stage = 0; n < count; ++n, stage ^= Tile::kStages - 1) {
    const uint32_t queries = others + stage * 2 * Tile::kOtherBytes;
    if (Tile::kStages == 1) {
      __syncthreads();  // nobody reads the tile before
      fill(n, 0);
    }
    WaitForCopies<0>();
    __syncthreads();
    if (Tile::kStages == 2 && n + 1 < count) fill(n + 1, stage ^ 1);
    const int s = query_of(n);
    const bool cut = s < all_first || s + kQueries > all_end;
    MultiplyRows<T, kFeatures, kQueries>(pairs.weights, keys, queries);
    MultiplyRows<T, kFeatures, kQueries>(pairs.grads, keys + Tile::kOwnBytes,
                                         queries + Tile::kOtherBytes);
    pairs.Set(p, place, head_of(n), top + row, s + column, bases[stage] + column,
              deltas[stage] + column, cut);
    sums.template Add<kQueries>(pairs, queries, queries + Tile::kOtherBytes);
  }
  WaitForCopies<0>();
  sums.Write(static_cast<T*>(p.grad_k) + p.grad_k_steps.At(place.b, place.h, at.k + top),
             static_cast<T*>(p.grad_v) + p.grad_v_steps.At(place.b, place.h, at.k + top), p, rows);
}

template <typename T, int kFeatures, bool kPacked>
__global__ __launch_bounds__(128) void GradeKeys(const __grid_constant__ GradientView p) {
  constexpr int kRows = GradientTile<kFeatures>::kOwn;
  const int64_t item = ItemOf();
  const bool is_ordered = HasOrder<kPacked, 128>(p.a);
  if (item >= p.key_items) return EndWithSinks<128>(p, item, is_ordered);
  if (!is_ordered) return FillKeysWithNan<T>(p, item, kRows);
  GradientPlace place;
  if (PlaceKeys<kPacked>(p, item, kRows, &place)) GradeTileOfKeys<T, kFeatures>(p, place);
}

}  // namespace
}  // namespace anyop::cuda
