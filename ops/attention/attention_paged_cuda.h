// SPDX-License-Identifier: Apache-2.0
// Attention to the pages of a cache on every GPU from Ampere on, float16 and bfloat16 by mma.sync.
//
// The queries of a sequence for the heads of a group are rows of one tile, so that its keys are
// read once. A block has at most 64 rows and a part of the keys. Up to 16 rows, as in decoding, are
// shared by its four warps, which take every fourth 16 keys and are joined at the end; else a warp
// has 16 rows of its own. Keys come 64 at a time by cp.async, two tiles ahead; pages are looked up
// one tile before. Parts of a sequence are joined by attention_paged_join.h, in their order. What a
// row's bits come from is its own sequence.
#pragma once

#include "attention_paged_rows.h"

namespace anyop::cuda {
namespace {

// What CleanTile took away, for the rows that see it.
template <typename T, typename C>
__device__ void AddBadPages(const PagedView& p, const PagedPlace& at, const PagedKeys& keys, int g,
                            int rows, int part, float scale) {
#pragma unroll 1
  for (int i = threadIdx.x; i < rows * p.E; i += 128) {
    const int r = at.row + i / p.E, e = i % p.E, s = r / p.group;
    float bad = 0;
    for (int t = std::max(0, keys.First(s)); t < keys.End(s); ++t) {
      const KeyPlace place = PlaceOfKey(p, at, t, keys.end);
      if (!place.IsRight(p)) continue;
      const C* v = static_cast<const C*>(p.v) + p.v_steps.At(place.page, g, place.place);
      const float value = WidenCached(v[e]);
      if (!isfinite(value)) bad += value * scale;
    }
    if (!isfinite(bad))
      PagedTarget<T>(p, {at.first + s, g * p.group + r % p.group, part}).Add(e, bad);
  }
}

// The end of four warps that share at most kSharedRows rows, each with keys of its own. outs: room
// for the sums of all; meet: of these warps.
template <typename T, int kFeatures, typename Warp, typename RowOf, typename Meet>
__device__ __forceinline__ void JoinWarps(const Warp& mine, const PagedView& p, const RowOf& row_of,
                                          int rows, const bool& is_wrong, float v_scale,
                                          float* outs, const Meet& meet) {
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  __shared__ float tops[4][kSharedRows], sums[4][kSharedRows], shares[4][kSharedRows];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int r = lane / 4 + 8 * half;
    if (lane % 4 == 0) tops[warp][r] = mine.max[half], sums[warp][r] = mine.sum[half];
#pragma unroll
    for (int n = 0; n < kFeatures / 8; ++n)
#pragma unroll
      for (int c = 0; c < 2; ++c)
        outs[(warp * kSharedRows + r) * kFeatures + Warp::FeatureOf(n, c)] =
            mine.out[n][2 * half + c];
  }
  meet();
  if (thread < rows) {
    float most = -INFINITY, sum = 0;
    for (int w = 0; w < 4; ++w) most = fmaxf(most, tops[w][thread]);
    const float base = most == -INFINITY ? 0 : most;
    for (int w = 0; w < 4; ++w) {
      shares[w][thread] = PowerOfTwo(tops[w][thread] - base);
      sum += sums[w][thread] * shares[w][thread];
    }
    if (is_wrong) most = sum = NAN;
    const float share = EndPagedRow(p, row_of(thread), most, sum) * v_scale / Warp::kWeight;
    for (int w = 0; w < 4; ++w) shares[w][thread] *= share;
  }
  meet();
#pragma unroll 1
  for (int i = thread; i < rows * p.E; i += 128) {
    const int r = i / p.E, e = i - r * p.E;
    float value = 0;
    for (int w = 0; w < 4; ++w) value += shares[w][r] * outs[(w * kSharedRows + r) * kFeatures + e];
    PagedTarget<T>(p, row_of(r)).Write(e, value);
  }
}

// One part of a tile's keys; at most kSharedRows rows where they are shared by the warps.
template <typename T, typename C, int kFeatures, bool kShares>
__device__ __forceinline__ void AttendPart(const PagedView& p, const PagedPlace& at, int g,
                                           int part) {
  using Tile = PagedTile<T, C, kFeatures, kShares>;
  constexpr int kStages = Tile::kStages, kRows = Tile::kRows;
  constexpr bool kBytes = kShares && !Tile::kIsWide;
  __shared__ bool is_bad, is_wrong;
  __shared__ RowPlace places[kStages + 1][kPagedKeys];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int rows = std::min(at.rows - at.row, kRows);
  const int top = at.row / p.group, last = (at.row + rows - 1) / p.group;
  PagedKeys keys = {at.T - at.S, p.left, p.right, part * p.part, 0};
  keys.end = std::min(at.T, keys.begin + p.part);
  const int first = keys.First(top), end = keys.End(last);
  const int start = keys.begin + (first - keys.begin) / kPagedKeys * kPagedKeys;
  const int all_first = keys.First(last), all_end = keys.End(top);  // what all rows see
  const int count = end > first ? (end - start + kPagedKeys - 1) / kPagedKeys : 0;
  const uint32_t shared = DynamicSharedAddress(), ring = shared + Tile::kRing;
  const uint32_t queries = shared + Tile::kQueries;
  const float k_scale = p.k_scale ? p.k_scale[g * p.k_scale_step] : 1;
  const float v_scale = p.v_scale ? p.v_scale[g * p.v_scale_step] : 1;
  if (thread == 0) is_bad = false, is_wrong = at.is_wrong;
  __syncthreads();
  const auto look_up = [&](int n) {
    return PlaceOfKey(p, at, start + n * kPagedKeys + thread, keys.end);
  };
  const auto keep = [&](int n, KeyPlace place) {
    if (place.IsWrong(p)) is_wrong = true;
    const bool is_there = place.IsRight(p);
    places[n % (kStages + 1)][thread] = {
        is_there ? p.k_steps.At(place.page, g, place.place) : RowPlace::kNone,
        is_there ? p.v_steps.At(place.page, g, place.place) : RowPlace::kNone};
  };
  const auto fill = [&](int n, auto at_once) {
    constexpr int kAtOnce = decltype(at_once)::value;
    const uint32_t stage = ring + n % kStages * 2 * Tile::kKeyBytes;
    const RowPlace* from = places[n % (kStages + 1)];
    FillPages<false, kFeatures, kAtOnce>(stage, static_cast<const C*>(p.k), from, p.D, p.k_aligned);
    FillPages<true, kFeatures, kAtOnce>(stage + Tile::kKeyBytes, static_cast<const C*>(p.v), from,
                                        p.E, p.v_aligned);
  };
  // What runs once is not unrolled: a block that starts waits for its instructions.
#pragma unroll 1
  for (int n = 0; n < kStages && n < count; ++n)
    if (thread < kPagedKeys) keep(n, look_up(n));
  FillQueries<T, kFeatures, kRows>(queries, p, at, g, rows);
  CommitCopies();
  __syncthreads();
#pragma unroll 1
  for (int n = 0; n < kStages - 1; ++n) {
    if (n < count) fill(n, std::integral_constant<int, 2>());
    CommitCopies();
  }
  WaitForCopies<kStages - 1>();
  __syncthreads();
  using Warp = PagedWarp<T, kFeatures, kShares ? 16 : kPagedKeys, kBytes>;
  Warp mine;
  const int warp_row = kShares ? 0 : 16 * warp, warp_key = kShares ? 16 * warp : 0;
  mine.LoadQueries(queries, warp_row);
  mine.SetRows(p, keys, at.row + warp_row, g);
  for (int n = 0; n < count; ++n) {
    WaitForCopies<kStages - 2>();
    __syncthreads();  // tile n is there, and nobody reads the one before
    if (n + kStages - 1 < count) fill(n + kStages - 1, std::integral_constant<int, 16>());
    CommitCopies();
    const bool is_next = thread < kPagedKeys && n + kStages < count;
    const KeyPlace next = is_next ? look_up(n + kStages) : KeyPlace{};
    uint32_t k = ring + n % kStages * 2 * Tile::kKeyBytes, v = k + Tile::kKeyBytes;
    if constexpr (Tile::kWidens) {
      const uint32_t wide = shared + Tile::kWiden;
      WidenPages<T, kFeatures>(wide, k);
      WidenPages<T, kFeatures>(wide + Tile::kWideBytes, v);
      k = wide, v = wide + Tile::kWideBytes;
      __syncthreads();
    }
    const int t = start + n * kPagedKeys;
    const bool cut = t < all_first || t + kPagedKeys > all_end;
    if (cut) {
      if constexpr (kBytes) {
        CleanBytes<kFeatures>(v, keys.end - t, &is_bad);
      } else {
        CleanTile<kPagedKeys, kFeatures, T>(v, thread, keys.end - t, &is_bad);
      }
      __syncthreads();
    }
    if (kShares || warp_row < rows) {
      mine.Multiply(k, warp_key);
      mine.SetScores(p, p.scale * k_scale, t + warp_key, cut);
      mine.Weigh();
      mine.AddValues(v, warp_key);
    }
    if (is_next) keep(n + kStages, next);
  }
  WaitForCopies<0>();
  __syncthreads();
  mine.EndSums();
  const auto row_of = [&](int r) {
    return PagedRow{at.first + (at.row + r) / p.group, g * p.group + (at.row + r) % p.group, part};
  };
  if constexpr (kShares) {
    auto* outs = reinterpret_cast<uint8_t*>(DynamicShared()) + Tile::kRing;
    JoinWarps<T, kFeatures>(mine, p, row_of, rows, is_wrong, v_scale,
                            reinterpret_cast<float*>(outs), [] { __syncthreads(); });
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = warp_row + lane / 4 + 8 * half;
      if (r >= rows) continue;
      const PagedRow row = row_of(r);
      const float wrong = is_wrong ? NAN : 0;
      const float share =
          EndPagedRow(p, row, mine.max[half] + wrong, mine.sum[half] + wrong) * v_scale;
      const PagedTarget<T> target(p, row);
#pragma unroll
      for (int n = 0; n < kFeatures / 8; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int e = Warp::FeatureOf(n, c);
          if (e < p.E) target.Write(e, mine.out[n][2 * half + c] * share);
        }
    }
  }
  __syncthreads();
  if (is_bad) AddBadPages<T, C>(p, at, keys, g, rows, part, v_scale);
}

// kShares: no sequence has more than kSharedRows rows of a group.
template <typename T, typename C, int kFeatures, bool kShares>
constexpr int kPagedBlocks = kFeatures == 256                   ? 1
                             : kShares && sizeof(C) < sizeof(T) ? 3
                                                                : 2;

template <typename T, typename C, int kFeatures, bool kShares>
__global__ __launch_bounds__(128, kPagedBlocks<T, C, kFeatures, kShares>) void AttendPages(
    const __grid_constant__ PagedView p) {
  // Groups of one page's keys are neighbours in memory, and their blocks in time.
  const int tile = static_cast<int>(blockIdx.x) / p.G,
            g = static_cast<int>(blockIdx.x) - tile * p.G;
  const int part = blockIdx.y;
  WaitForWork();
  LetNextStart();
  if (p.cu_q && !AreInOrder<128>(p.cu_q, p.B, p.S)) {
    if (part == 0) FillPagesWithNan<T>(p, g, tile, p.tiles);
    return;
  }
  PagedPlace at = FindPaged(p, tile, kPagedRows);
  if (at.is_wrong) at.T = 0;
  if (!at.is_there || (part > 0 && int64_t{part} * p.part >= at.T)) return;
  if (kShares || at.rows <= kSharedRows) {
    AttendPart<T, C, kFeatures, true>(p, at, g, part);
  } else if constexpr (!kShares) {
    AttendPart<T, C, kFeatures, false>(p, at, g, part);
  }
}

}  // namespace
}  // namespace anyop::cuda
