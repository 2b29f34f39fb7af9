// SPDX-License-Identifier: Apache-2.0
// Attention to the pages of a cache on every GPU from Ampere on, float16 and bfloat16 by mma.sync.
//
// The queries of a sequence for the heads of a group are rows of one tile, so that its keys are read
// once. A block has at most 64 rows and a part of the keys. Up to 16 rows, as in decoding, are
// shared by its four warps, which take every fourth 16 keys and are joined at the end; else a warp
// has 16 rows of its own. Keys come 64 at a time by cp.async, two tiles ahead; pages are looked up
// one tile before. 8-bit floats are widened in shared memory. Parts of a sequence are joined by
// JoinParts, in their order. What a row's bits come from is its own sequence.
#pragma once

#include "attention_mma.h"
#include "attention_plain.h"

namespace anyop::cuda {
namespace {

// Queries (tokens, heads, features), caches (pages, places, groups, features).
struct PagedView {
  const void *q, *k, *v;
  void* out;
  float *lse, *parts, *parts_lse;  // nullptr: not wanted; one part
  const float *sinks, *slopes, *k_scale, *v_scale;
  const int32_t *table, *lengths, *cu_q;
  Steps q_steps, out_steps, lse_steps;  // of tokens and heads
  Steps k_steps, v_steps;               // batch: of pages, row: of places
  int64_t k_scale_step, v_scale_step;
  int64_t places;  // that the pages of a sequence hold
  int B, S, H, G, group, D, E, N, P, M;
  int tiles, count, part;  // tiles of rows; parts, and keys of one
  int left, right;
  float scale, softcap;
  bool q_aligned, k_aligned, v_aligned;
};

constexpr int kPagedRows = 64, kPagedKeys = 64, kSharedRows = 16;

// The rows of a tile: query `row / group` of the sequence, head `row % group` of the group.
struct PagedPlace {
  int b, first, S, T, row, rows;  // T: keys; row, rows: the tile's first, those of the sequence
  bool is_there, is_wrong;
};

__device__ inline PagedPlace FindPaged(const PagedView& p, int tile) {
  PagedPlace at = {};
  int end = 0;
  if (p.cu_q) {
    int low = 0, high = p.B + 2;
    while (high - low > 1) {
      const int i = (low + high) / 2;
      const int64_t start = StartOf(p.cu_q, p.B, p.S, i);
      if (start * p.group / kPagedRows + i <= tile) {
        low = i;
      } else {
        high = i;
      }
    }
    at.b = low > p.B ? -1 : low - 1;
    at.first = StartOf(p.cu_q, p.B, p.S, low), end = StartOf(p.cu_q, p.B, p.S, low + 1);
    tile -= static_cast<int>(int64_t{at.first} * p.group / kPagedRows) + low;
  } else {
    const int each = p.S / p.B, tiles = (each * p.group + kPagedRows - 1) / kPagedRows;
    at.b = tile / tiles, at.first = at.b * each, end = at.first + each;
    tile -= at.b * tiles;
  }
  at.S = end - at.first, at.rows = at.S * p.group, at.row = tile * kPagedRows;
  at.T = at.b >= 0 ? p.lengths[at.b] : 0;
  at.is_there = at.row < at.rows;
  at.is_wrong = at.T < 0 || at.T > p.places;
  return at;
}

// Which keys of a part a query sees.
struct PagedKeys {
  int offset, left, right, begin, end;
  __device__ int First(int s) const { return std::max(begin, s + offset - left); }
  __device__ int End(int s) const { return std::min(end, s + offset + right + 1); }
};

// Page -1: there is no key. -2: there is no such page.
struct KeyPlace {
  int page, place;
};
__device__ inline KeyPlace PlaceOfKey(const PagedView& p, const PagedPlace& at, int t, int end) {
  if (t >= end) return KeyPlace{-1, 0};
  const int page = p.table[int64_t{at.b} * p.M + t / p.P];
  return page < 0 || page >= p.N ? KeyPlace{-2, 0} : KeyPlace{page, t % p.P};
}

template <typename T, typename C, int kFeatures>
struct PagedTile {
  static constexpr int kStages = kFeatures == 256 ? 2 : 3, kThreads = 128;
  static constexpr bool kIsWide = sizeof(C) == sizeof(T);
  static constexpr uint32_t kWideBytes = kPagedKeys * kFeatures * 2;
  static constexpr uint32_t kKeyBytes = kPagedKeys * kFeatures * sizeof(C);
  static constexpr uint32_t kQueryBytes = kPagedRows * kFeatures * 2;
  static constexpr uint32_t kRing = kQueryBytes + (kIsWide ? 0 : 2 * kWideBytes);
  static constexpr uint32_t kSharedBytes = kRing + kStages * 2 * kKeyBytes;
};

// Rows of keys or values to a stage, zeroes where there is none.
template <typename T, typename C, int kFeatures>
__device__ void FillPages(uint32_t to, const C* cache, const Steps& steps, int g, const KeyPlace* rows,
                          int width, bool aligned) {
  constexpr int kEach = 16 / sizeof(C), kPieces = kFeatures / kEach;
#pragma unroll 4
  for (int i = 0; i < kPagedKeys * kPieces / 128; ++i) {
    const int at = static_cast<int>(threadIdx.x) + 128 * i, row = at / kPieces, piece = at % kPieces;
    const KeyPlace place = rows[row];
    const int left = place.page >= 0 ? width - kEach * piece : 0;
    const C* from = cache + (left > 0 ? steps.At(place.page, g, place.place) + kEach * piece : 0);
    const uint32_t target = to + (sizeof(C) == 2 ? InTile<kPagedKeys>(row, piece)
                                                 : row * kFeatures + 16 * piece);
    if (aligned) {
      CopyAside(target, from, left > 0);
      continue;
    }
    uint32_t words[4] = {};
    for (int e = 0; e < kEach && e < left; ++e) {
      const uint32_t bits = sizeof(C) == 2 ? reinterpret_cast<const uint16_t*>(from)[e]
                                           : reinterpret_cast<const uint8_t*>(from)[e];
      words[e * sizeof(C) / 4] |= bits << 8 * (e * sizeof(C) % 4);
    }
    StoreShared(target, words);
  }
}

// The rows of a tile, zeroes behind them.
template <typename T, int kFeatures, int kRows>
__device__ void FillQueries(uint32_t to, const PagedView& p, const PagedPlace& at, int g,
                            int rows) {
  constexpr int kPieces = kFeatures / 8;
#pragma unroll 1
  for (int i = threadIdx.x; i < kRows * kPieces; i += 128) {
    const int r = i / kPieces, piece = i % kPieces, left = r < rows ? p.D - 8 * piece : 0;
    const int64_t token = at.first + (at.row + r) / p.group;
    const T* q = static_cast<const T*>(p.q);
    if (left > 0) q += p.q_steps.At(0, g * p.group + (at.row + r) % p.group, token) + 8 * piece;
    const uint32_t target = to + InTile<kPagedRows>(r, piece);
    if (p.q_aligned) {
      CopyAside(target, q, left > 0);
      continue;
    }
    uint32_t words[4] = {};
    for (int e = 0; e < 8 && e < left; ++e)
      words[e / 2] |= uint32_t{reinterpret_cast<const uint16_t*>(q)[e]} << 16 * (e % 2);
    StoreShared(target, words);
  }
}

// A stage of 8-bit floats as a tile of T.
template <typename T, int kFeatures>
__device__ void WidenPages(uint32_t to, uint32_t from) {
  constexpr int kPieces = kFeatures / 16;
#pragma unroll 2
  for (int i = 0; i < kPagedKeys * kPieces / 128; ++i) {
    const int at = static_cast<int>(threadIdx.x) + 128 * i, row = at / kPieces, piece = at % kPieces;
    uint32_t bytes[4];
    LoadShared(bytes, from + row * kFeatures + 16 * piece);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const uint32_t two = bytes[2 * half + w / 2] >> 16 * (w % 2) & 0xffff;
        const uint32_t wide = WidenTwo<Operand::kE4M3>(two);
        words[w] = std::is_same_v<T, __half>
                       ? wide
                       : NarrowTwo(T(), WidenLow(__half(), wide), WidenHigh(__half(), wide));
      }
      StoreShared(to + InTile<kPagedKeys>(row, 2 * piece + half), words);
    }
  }
}

// What a warp has of 16 rows and kKeys keys of a tile, as WarpRows.
template <typename T, int kFeatures, int kKeys>
struct PagedWarp {
  static constexpr float kLog2E = 1.44269504088896340736f;
  static constexpr bool kKeeps = kFeatures < 256;  // queries in registers
  uint32_t q[kKeeps ? kFeatures / 16 : 1][4], tile, row;
  float out[kFeatures / 8][4] = {}, scores[kKeys / 8][4];
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {};

  __device__ static int Lane() { return threadIdx.x % 32; }

  // Of a tile of queries from `row` on.
  __device__ void LoadQueries(uint32_t queries, int from) {
    tile = queries, row = from;
#pragma unroll
    for (int h = 0; kKeeps && h < kFeatures / 16; ++h) LoadStep(q[h], h);
  }
  __device__ void LoadStep(uint32_t (&words)[4], int h) const {
    const uint32_t lane = ComputedHere(threadIdx.x) % 32;
    LoadMatrices(words, tile + InTile<kPagedRows>(row + lane % 16, 2 * h + lane / 16));
  }
  // From row `first` of the tile on.
  __device__ void Multiply(uint32_t k, int first) {
    const uint32_t lane = ComputedHere(threadIdx.x) % 32;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) scores[n][c] = 0;
#pragma unroll
    for (int h = 0; h < kFeatures / 16; ++h) {
      uint32_t(&a)[4] = q[kKeeps ? h : 0];
      if (!kKeeps) LoadStep(a, h);
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        uint32_t b[4];
        LoadMatrices(b, k + InTile<kPagedKeys>(first + 16 * n + lane % 8 + lane / 16 * 8,
                                               2 * h + lane / 8 % 2));
        MultiplyAdd<kOperandOf<T>>(scores[2 * n], a, b[0], b[1]);
        MultiplyAdd<kOperandOf<T>>(scores[2 * n + 1], a, b[2], b[3]);
      }
    }
  }
  // To scores as multiples of ln 2, -inf where a row does not see a key; t: the first key.
  __device__ void SetScores(const PagedView& p, const PagedKeys& keys, float scale, int row, int g,
                            int t) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row + Lane() / 4 + 8 * half, s = r / p.group;
      const int first = keys.First(s), end = keys.End(s);
      const float slope = p.slopes ? p.slopes[g * p.group + r % p.group] * kLog2E : 0;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int key = t + 8 * n + Lane() % 4 * 2 + c;
          float& score = scores[n][2 * half + c];
          if (p.softcap > 0) {
            score = CapOf(score * scale, p.softcap) * kLog2E;
          } else {
            score *= scale * kLog2E;
          }
          if (p.slopes) score -= slope * fabsf(static_cast<float>(s + keys.offset - key));
          if (key < first || key >= end) score = -INFINITY;
        }
    }
  }
  __device__ void Weigh() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float most = max[half];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
        most = fmaxf(most, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      const float base = most == -INFINITY ? 0 : most, factor = PowerOfTwo(max[half] - base);
      max[half] = most;
      float total = 0;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int c = 2 * half; c < 2 * half + 2; ++c) {
          scores[n][c] = PowerOfTwo(scores[n][c] - base);
          total += scores[n][c];
        }
      sum[half] = sum[half] * factor + total;
#pragma unroll
      for (int n = 0; n < kFeatures / 8; ++n)
#pragma unroll
        for (int c = 2 * half; c < 2 * half + 2; ++c) out[n][c] *= factor;
    }
  }
  __device__ void AddValues(uint32_t v, int first) {
    const uint32_t lane = ComputedHere(threadIdx.x) % 32;
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      uint32_t a[4];
#pragma unroll
      for (int w = 0; w < 4; ++w)
        a[w] = NarrowTwo(T(), scores[2 * n + w / 2][w % 2 * 2], scores[2 * n + w / 2][w % 2 * 2 + 1]);
#pragma unroll
      for (int e = 0; e < kFeatures / 16; ++e) {
        uint32_t b[4];
        LoadTransposed(b, v + InTile<kPagedKeys>(first + 16 * n + lane % 16, 2 * e + lane / 16));
        MultiplyAdd<kOperandOf<T>>(out[2 * e], a, b[0], b[1]);
        MultiplyAdd<kOperandOf<T>>(out[2 * e + 1], a, b[2], b[3]);
      }
    }
  }
  __device__ void EndSums() {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sum[half] += __shfl_xor_sync(~0u, sum[half], 1);
      sum[half] += __shfl_xor_sync(~0u, sum[half], 2);
    }
  }
};

// Where a row's result goes: out, or the part's.
struct PagedRow {
  int64_t token;
  int h, part;
  __device__ int64_t InParts(const PagedView& p) const {
    return (int64_t{part} * p.S + token) * p.H + h;
  }
};

// A row's greatest score and sum of weights, with a sink's where there is one part; what its values
// are to be multiplied by. Writes its logarithm.
__device__ inline float EndPagedRow(const PagedView& p, const PagedRow& row, float max, float sum) {
  const bool is_whole = p.count == 1;
  float share = sum == 0 ? 0 : 1 / sum, top = max, total = sum;
  if (is_whole && p.sinks) {
    const float sink = p.sinks[row.h] * 1.44269504088896340736f;
    top = sink <= max ? max : sink;
    if (top != -INFINITY) {
      const float factor = PowerOfTwo(max - top);
      total = sum * factor + PowerOfTwo(sink - top);
      share = sum == 0 ? 0 : factor / total;
    }
  }
  const float lse = top + log2f(total);  // -inf: none
  if (!is_whole) {
    p.parts_lse[row.InParts(p)] = lse;
  } else if (p.lse) {
    p.lse[p.lse_steps.At(0, row.h, row.token)] = lse * 0.69314718055994530942f;
  }
  return share;
}
template <typename T>
__device__ void WritePaged(const PagedView& p, const PagedRow& row, int e, float value) {
  if (p.count == 1) {
    static_cast<T*>(p.out)[p.out_steps.At(0, row.h, row.token) + e] = Narrow<T>(value);
  } else {
    p.parts[row.InParts(p) * p.E + e] = value;
  }
}

template <typename C>
__device__ float WidenCached(C v) {
  return Widen(v);
}
__device__ inline float WidenCached(uint8_t v) {
  return WidenLow(__half(), WidenTwo<Operand::kE4M3>(v));
}

// What CleanTile took away, for the rows that see it.
template <typename T, typename C>
__device__ void AddBadPages(const PagedView& p, const PagedPlace& at, const PagedKeys& keys, int g,
                            int rows, int part, float scale) {
  for (int i = threadIdx.x; i < rows * p.E; i += 128) {
    const int r = at.row + i / p.E, e = i % p.E, s = r / p.group;
    float bad = 0;
    for (int t = std::max(0, keys.First(s)); t < keys.End(s); ++t) {
      const KeyPlace place = PlaceOfKey(p, at, t, keys.end);
      if (place.page < 0) continue;
      const C* v = static_cast<const C*>(p.v) + p.v_steps.At(place.page, g, place.place);
      const float value = WidenCached(v[e]);
      if (!isfinite(value)) bad += value * scale;
    }
    const PagedRow row = {at.first + s, g * p.group + r % p.group, part};
    if (!isfinite(bad)) {
      if (p.count == 1) {
        T* to = static_cast<T*>(p.out) + p.out_steps.At(0, row.h, row.token) + e;
        *to = Narrow<T>(Widen(*to) + bad);
      } else {
        p.parts[row.InParts(p) * p.E + e] += bad;
      }
    }
  }
}

// One part of a tile's keys; at most kSharedRows rows where they are shared by the warps.
template <typename T, typename C, int kFeatures, bool kShares>
__device__ __forceinline__ void AttendPart(const PagedView& p, const PagedPlace& at, int g,
                                           int part) {
  using Tile = PagedTile<T, C, kFeatures>;
  constexpr int kStages = Tile::kStages, kRows = kShares ? kSharedRows : kPagedRows;
  __shared__ bool is_bad, is_wrong;
  __shared__ KeyPlace places[kStages + 1][kPagedKeys];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int rows = std::min(at.rows - at.row, kRows);
  const int top = at.row / p.group, last = (at.row + rows - 1) / p.group;
  PagedKeys keys = {at.T - at.S, p.left, p.right, part * p.part, 0};
  keys.end = std::min(at.T, keys.begin + p.part);
  const int first = keys.First(top), end = keys.End(last);
  const int start = keys.begin + (first - keys.begin) / kPagedKeys * kPagedKeys;
  const int count = end > first ? (end - start + kPagedKeys - 1) / kPagedKeys : 0;
  const uint32_t queries = DynamicSharedAddress(), ring = queries + Tile::kRing;
  const float k_scale = p.k_scale ? p.k_scale[g * p.k_scale_step] : 1;
  const float v_scale = p.v_scale ? p.v_scale[g * p.v_scale_step] : 1;
  if (thread == 0) is_bad = false, is_wrong = at.is_wrong;
  __syncthreads();
  const auto look_up = [&](int n) {
    return PlaceOfKey(p, at, start + n * kPagedKeys + thread, keys.end);
  };
  const auto keep = [&](int n, KeyPlace place) {
    if (place.page == -2) is_wrong = true;
    places[n % (kStages + 1)][thread] = place;
  };
  const auto fill = [&](int n) {
    const uint32_t stage = ring + n % kStages * 2 * Tile::kKeyBytes;
    const KeyPlace* from = places[n % (kStages + 1)];
    FillPages<T, C, kFeatures>(stage, static_cast<const C*>(p.k), p.k_steps, g, from, p.D,
                               p.k_aligned);
    FillPages<T, C, kFeatures>(stage + Tile::kKeyBytes, static_cast<const C*>(p.v), p.v_steps, g,
                               from, p.E, p.v_aligned);
  };
  for (int n = 0; n < kStages && n < count; ++n)
    if (thread < kPagedKeys) keep(n, look_up(n));
  FillQueries<T, kFeatures, kRows>(queries, p, at, g, rows);
  CommitCopies();
  __syncthreads();
  for (int n = 0; n < kStages - 1; ++n) {
    if (n < count) fill(n);
    CommitCopies();
  }
  WaitForCopies<kStages - 1>();
  __syncthreads();
  PagedWarp<T, kFeatures, kShares ? 16 : kPagedKeys> mine;
  const int warp_row = kShares ? 0 : 16 * warp, warp_key = kShares ? 16 * warp : 0;
  mine.LoadQueries(queries, warp_row);
  for (int n = 0; n < count; ++n) {
    WaitForCopies<kStages - 2>();
    __syncthreads();  // tile n is there, and nobody reads the one before
    if (n + kStages - 1 < count) fill(n + kStages - 1);
    CommitCopies();
    const bool is_next = thread < kPagedKeys && n + kStages < count;
    const KeyPlace next = is_next ? look_up(n + kStages) : KeyPlace{-1, 0};
    uint32_t k = ring + n % kStages * 2 * Tile::kKeyBytes, v = k + Tile::kKeyBytes;
    if constexpr (!Tile::kIsWide) {
      const uint32_t wide = queries + Tile::kQueryBytes;
      WidenPages<T, kFeatures>(wide, k);
      WidenPages<T, kFeatures>(wide + Tile::kWideBytes, v);
      k = wide, v = wide + Tile::kWideBytes;
      __syncthreads();
    }
    const int t = start + n * kPagedKeys;
    if (t < keys.First(last) || t + kPagedKeys > keys.End(top)) {  // not all rows see all of it
      CleanTile<kPagedKeys, kFeatures, T>(v, thread, keys.end - t, &is_bad);
      __syncthreads();
    }
    if (kShares || warp_row < rows) {
      mine.Multiply(k, warp_key);
      mine.SetScores(p, keys, p.scale * k_scale, at.row + warp_row, g, t + warp_key);
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
    __shared__ float tops[4][kSharedRows], sums[4][kSharedRows], shares[4][kSharedRows];
    auto* outs = reinterpret_cast<float*>(reinterpret_cast<uint8_t*>(DynamicShared()) + Tile::kRing);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = lane / 4 + 8 * half;
      if (lane % 4 == 0) tops[warp][r] = mine.max[half], sums[warp][r] = mine.sum[half];
#pragma unroll
      for (int n = 0; n < kFeatures / 8; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          outs[(warp * kSharedRows + r) * kFeatures + 8 * n + lane % 4 * 2 + c] =
              mine.out[n][2 * half + c];
    }
    __syncthreads();
    if (thread < rows) {
      float most = -INFINITY, sum = 0;
      for (int w = 0; w < 4; ++w) most = fmaxf(most, tops[w][thread]);
      const float base = most == -INFINITY ? 0 : most;
      for (int w = 0; w < 4; ++w) {
        shares[w][thread] = PowerOfTwo(tops[w][thread] - base);
        sum += sums[w][thread] * shares[w][thread];
      }
      if (is_wrong) most = sum = NAN;
      const float share = EndPagedRow(p, row_of(thread), most, sum) * v_scale;
      for (int w = 0; w < 4; ++w) shares[w][thread] *= share;
    }
    __syncthreads();
    for (int i = thread; i < rows * p.E; i += 128) {
      const int r = i / p.E, e = i - r * p.E;
      float value = 0;
      for (int w = 0; w < 4; ++w)
        value += shares[w][r] * outs[(w * kSharedRows + r) * kFeatures + e];
      WritePaged<T>(p, row_of(r), e, value);
    }
  } else {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = warp_row + lane / 4 + 8 * half;
      if (r >= rows) continue;
      const PagedRow row = row_of(r);
      const float wrong = is_wrong ? NAN : 0;
      const float share =
          EndPagedRow(p, row, mine.max[half] + wrong, mine.sum[half] + wrong) * v_scale;
#pragma unroll
      for (int n = 0; n < kFeatures / 8; ++n)
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int e = 8 * n + lane % 4 * 2 + c;
          if (e < p.E) WritePaged<T>(p, row, e, mine.out[n][2 * half + c] * share);
        }
    }
  }
  __syncthreads();
  if (is_bad) AddBadPages<T, C>(p, at, keys, g, rows, part, v_scale);
}

// What a wrong cu_seqlens_q gives: NaN for all.
template <typename T>
__device__ void FillPagesWithNan(const PagedView& p, int g, int begin, int step) {
  for (int64_t token = begin; token < p.S; token += step)
    for (int h = g * p.group; h < (g + 1) * p.group; ++h) {
      T* to = static_cast<T*>(p.out) + p.out_steps.At(0, h, token);
      for (int e = threadIdx.x; e < p.E; e += blockDim.x) to[e] = Narrow<T>(NAN);
      if (p.lse && threadIdx.x == 0) p.lse[p.lse_steps.At(0, h, token)] = NAN;
    }
}

template <typename T, typename C, int kFeatures>
__global__ __launch_bounds__(128, kFeatures == 256 ? 1 : 2) void AttendPages(const __grid_constant__ PagedView p) {
  const int g = blockIdx.y, part = blockIdx.z;
  if (p.cu_q && !AreInOrder<128>(p.cu_q, p.B, p.S)) {
    if (part == 0) FillPagesWithNan<T>(p, g, blockIdx.x, gridDim.x);
    return;
  }
  PagedPlace at = FindPaged(p, blockIdx.x);
  if (at.is_wrong) at.T = 0;
  if (!at.is_there || (part > 0 && int64_t{part} * p.part >= at.T)) return;
  if (at.rows <= kSharedRows) {
    AttendPart<T, C, kFeatures, true>(p, at, g, part);
  } else {
    AttendPart<T, C, kFeatures, false>(p, at, g, part);
  }
}

// The sequence of a token, -1 for none.
__device__ inline int SequenceOf(const PagedView& p, int token) {
  if (!p.cu_q) return token / (p.S / p.B);
  int low = 0, high = p.B + 2;
  while (high - low > 1) {
    const int i = (low + high) / 2;
    if (StartOf(p.cu_q, p.B, p.S, i) <= token) {
      low = i;
    } else {
      high = i;
    }
  }
  return low > p.B ? -1 : low - 1;
}

// A warp joins the parts of a token's head.
template <typename T>
__global__ __launch_bounds__(128) void JoinParts(const __grid_constant__ PagedView p) {
  if (p.cu_q && !AreInOrder<128>(p.cu_q, p.B, p.S)) return;
  const int64_t row = int64_t{blockIdx.x} * 4 + threadIdx.x / 32;
  if (row >= int64_t{p.S} * p.H) return;
  const int token = static_cast<int>(row / p.H), h = static_cast<int>(row % p.H);
  const int lane = threadIdx.x % 32, b = SequenceOf(p, token);
  const int64_t length = b < 0 ? 0 : p.lengths[b];
  const int64_t count = length > p.places ? 1 : std::max<int64_t>(1, (length + p.part - 1) / p.part);
  const auto at = [&](int64_t part) { return (part * p.S + token) * p.H + h; };
  const float sink = p.sinks ? p.sinks[h] * 1.44269504088896340736f : -INFINITY;
  float most = p.sinks ? sink : -INFINITY;
  for (int64_t i = 0; i < count; ++i) {
    const float lse = p.parts_lse[at(i)];
    most = lse <= most ? most : lse;  // NaN where one is
  }
  const float base = most == -INFINITY ? 0 : most;
  float sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += PowerOfTwo(p.parts_lse[at(i)] - base);
  const float total = sum + (p.sinks ? PowerOfTwo(sink - base) : 0);
  T* to = static_cast<T*>(p.out) + p.out_steps.At(0, h, token);
  for (int e = lane; e < p.E; e += 32) {
    float value = 0;
    for (int64_t i = 0; i < count; ++i) {
      const float weight = PowerOfTwo(p.parts_lse[at(i)] - base);
      if (weight != 0) value += weight * p.parts[at(i) * p.E + e];
    }
    to[e] = Narrow<T>(sum == 0 ? 0 : value / total);
  }
  if (p.lse && lane == 0)
    p.lse[p.lse_steps.At(0, h, token)] = (base + log2f(total)) * 0.69314718055994530942f;
}

// ---- float32, by plain arithmetic: a warp for a token's head ----

template <typename C>
__global__ __launch_bounds__(128) void AttendPagesPlainly(const __grid_constant__ PagedView p) {
  if (p.cu_q && !AreInOrder<128>(p.cu_q, p.B, p.S)) {
    for (int g = 0; g < p.G; ++g) FillPagesWithNan<float>(p, g, blockIdx.x, gridDim.x);
    return;
  }
  const int64_t row = int64_t{blockIdx.x} * 4 + threadIdx.x / 32;
  if (row >= int64_t{p.S} * p.H) return;
  const int token = static_cast<int>(row / p.H), h = static_cast<int>(row % p.H), g = h / p.group;
  const int lane = threadIdx.x % 32;
  PagedPlace at = {};
  at.b = SequenceOf(p, token);
  at.first = p.cu_q ? StartOf(p.cu_q, p.B, p.S, at.b + 1) : at.b * (p.S / p.B);
  at.S = (p.cu_q ? StartOf(p.cu_q, p.B, p.S, at.b + 2) : at.first + p.S / p.B) - at.first;
  at.T = at.b < 0 ? 0 : p.lengths[at.b];
  bool is_wrong = at.T < 0 || at.T > p.places;
  if (is_wrong) at.T = 0;
  const PagedKeys keys = {at.T - at.S, p.left, p.right, 0, at.T};
  const int s = token - at.first, end = at.b < 0 ? 0 : keys.End(s);
  const auto* q = static_cast<const float*>(p.q) + p.q_steps.At(0, h, token);
  const float k_scale = p.k_scale ? p.k_scale[g * p.k_scale_step] : 1;
  const float v_scale = p.v_scale ? p.v_scale[g * p.v_scale_step] : 1;
  float max = -INFINITY, sum = 0, out[kPlainFeatures / 32] = {};
  for (int t0 = keys.First(s); t0 < end; t0 += 32) {
    const int t = t0 + lane;
    const KeyPlace place = PlaceOfKey(p, at, t, end);
    is_wrong |= place.page == -2;
    float score = -INFINITY;
    if (place.page >= 0) {
      const C* k = static_cast<const C*>(p.k) + p.k_steps.At(place.page, g, place.place);
      score = 0;
      for (int d = 0; d < p.D; ++d) score = MulAdd(q[d], WidenCached(k[d]), score);
      score *= p.scale * k_scale;
      if (p.softcap > 0) score = CapOf(score, p.softcap);
      if (p.slopes) score -= p.slopes[h] * fabsf(static_cast<float>(s + keys.offset - t));
      score *= 1.44269504088896340736f;
    }
    float most = score <= max ? max : score;
    for (int by = 16; by > 0; by /= 2) {
      const float other = __shfl_xor_sync(~0u, most, by);
      most = most < other ? other : most;
    }
    const float base = most == -INFINITY ? 0 : most, factor = PowerOfTwo(max - base);
    const float weight = place.page >= 0 ? PowerOfTwo(score - base) : 0;
    max = most, sum = sum * factor + weight;
#pragma unroll
    for (int i = 0; i < kPlainFeatures / 32; ++i) out[i] *= factor;
    for (unsigned left = __ballot_sync(~0u, place.page >= 0); left; left &= left - 1) {
      const int key = __ffs(static_cast<int>(left)) - 1;
      const float share = __shfl_sync(~0u, weight, key);
      const int page = __shfl_sync(~0u, place.page, key), in_page = __shfl_sync(~0u, place.place, key);
      const C* v = static_cast<const C*>(p.v) + p.v_steps.At(page, g, in_page);
#pragma unroll
      for (int i = 0; i < kPlainFeatures / 32; ++i)
        if (lane + 32 * i < p.E) out[i] = MulAdd(share, WidenCached(v[lane + 32 * i]), out[i]);
    }
  }
  for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  if (__any_sync(~0u, is_wrong)) max = sum = NAN;
  const float share = EndPagedRow(p, {token, h, 0}, max, sum) * v_scale;
#pragma unroll
  for (int i = 0; i < kPlainFeatures / 32; ++i)
    if (lane + 32 * i < p.E) WritePaged<float>(p, {token, h, 0}, lane + 32 * i, out[i] * share);
}

}  // namespace
}  // namespace anyop::cuda
