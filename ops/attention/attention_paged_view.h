// SPDX-License-Identifier: Apache-2.0
// Attention to the pages of a cache, as its kernels on CUDA read it: tiles of rows, where keys lie,
// where a row's result goes.
#pragma once

#include "attention_cuda.h"

namespace anyop::cuda {
namespace {

// Queries (tokens, heads, features), caches (pages, places, groups, features).
struct PagedView {
  const void *q, *k, *v;
  void* out;
  float *lse, *parts, *parts_lse;  // nullptr: not wanted; one part
  const float *sinks, *slopes, *k_scale, *v_scale;
  const int32_t *table, *lengths, *cu_q;
  const int32_t* indices;  // M rows of each sequence, page * P + place, -1: none; no table
  Steps q_steps, out_steps, lse_steps;  // batch: of `each` tokens, row: of tokens
  Steps k_steps, v_steps;               // batch: of pages, row: of places
  int64_t k_scale_step, v_scale_step;
  int64_t places;  // that the pages of a sequence hold
  int B, S, H, G, group, D, E, N, P, M;
  int each;                // tokens of a sequence; all where cu_q says where each begins
  int tiles, count, part;  // tiles of rows; parts, and keys of one
  int left, right;
  float scale, softcap;
  bool q_aligned, k_aligned, v_aligned, out_aligned;

  __device__ int64_t At(const Steps& steps, int h, int64_t token) const {
    const int b = static_cast<int>(token) / each;
    return steps.At(b, h, token - int64_t{b} * each);
  }
  __device__ int64_t LengthOf(int b) const { return b < 0 ? 0 : lengths ? lengths[b] : places; }
};

constexpr int kPagedRows = 64, kPagedKeys = 64, kSharedRows = 16;

// The rows of a tile: query `row / group` of the sequence, head `row % group` of the group.
struct PagedPlace {
  int b, first, S, T, row, rows;  // T: keys; row, rows: the tile's first, those of the sequence
  bool is_there, is_wrong;
};

// Tiles of so many rows.
__device__ inline PagedPlace FindPaged(const PagedView& p, int tile, int rows) {
  PagedPlace at = {};
  int end = 0;
  if (p.cu_q) {
    int low = 0, high = p.B + 2;
    while (high - low > 1) {
      const int i = (low + high) / 2;
      const int64_t start = StartOf(p.cu_q, p.B, p.S, i);
      if (start * p.group / rows + i <= tile) {
        low = i;
      } else {
        high = i;
      }
    }
    at.b = low > p.B ? -1 : low - 1;
    at.first = StartOf(p.cu_q, p.B, p.S, low), end = StartOf(p.cu_q, p.B, p.S, low + 1);
    tile -= static_cast<int>(int64_t{at.first} * p.group / rows) + low;
  } else {
    const int tiles = (p.each * p.group + rows - 1) / rows;
    at.b = tile / tiles, at.first = at.b * p.each, end = at.first + p.each;
    tile -= at.b * tiles;
  }
  at.S = end - at.first, at.rows = at.S * p.group, at.row = tile * rows;
  at.T = static_cast<int>(p.LengthOf(at.b));
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

// Where a key lies; page -1: there is none. What the table says is looked at as late as possible.
struct KeyPlace {
  int page, place;
  bool is_there;
  __device__ bool IsWrong(const PagedView& p) const {
    return is_there && (page < 0 || page >= p.N);
  }
  __device__ bool IsRight(const PagedView& p) const { return is_there && page >= 0 && page < p.N; }
};
// Elements of the caches from their starts to a key's and its value's row.
struct RowPlace {
  static constexpr int64_t kNone = INT64_MIN;
  int64_t k, v;
};
// What the table or the indices say of key t < end; -1 behind the end.
__device__ inline int EntryOfKey(const PagedView& p, const PagedPlace& at, int t, int end) {
  if (t >= end) return -1;
  const int64_t first = int64_t{at.b} * p.M;
  return p.indices ? p.indices[first + t] : p.table[first + t / p.P];
}
__device__ inline KeyPlace PlaceOfEntry(const PagedView& p, int entry, int t, int end) {
  if (t >= end) return {-1, 0, false};
  if (p.indices && p.N == 1) return {entry < p.P ? entry >> 31 : 1, entry, entry != -1};
  if (p.indices) return {entry < 0 ? entry : entry / p.P, entry < 0 ? 0 : entry % p.P, entry != -1};
  return {entry, t % p.P, true};
}
__device__ inline KeyPlace PlaceOfKey(const PagedView& p, const PagedPlace& at, int t, int end) {
  return PlaceOfEntry(p, EntryOfKey(p, at, t, end), t, end);
}

// Where a row's result goes: out, or the part's.
struct PagedRow {
  int64_t token;
  int h, part;
  __device__ int64_t InParts(const PagedView& p) const {
    return (int64_t{part} * p.S + token) * p.H + h;
  }
};

// What a row's weighted values are to be multiplied by, and its logarithm as a multiple of ln 2
// (-inf: there are no keys), from its greatest score and the sum of its weights.
struct PagedEnd {
  float share, lse;
};
__device__ inline PagedEnd EndSum(const float* sinks, int h, float max, float sum) {
  float factor = 1, top = max, total = sum;
  if (sinks) {
    const float sink = sinks[h] * 1.44269504088896340736f;
    top = sink <= max ? max : sink;  // NaN where the sink is
    if (top != -INFINITY)
      factor = PowerOfTwo(max - top), total = sum * factor + PowerOfTwo(sink - top);
  }
  return {sum == 0 ? 0 : factor / total, top + log2f(total)};
}
// The same, of the whole row or of a part, which has no sink. Writes the logarithm.
__device__ inline float EndPagedRow(const PagedView& p, const PagedRow& row, float max, float sum) {
  const bool is_whole = p.count == 1;
  const PagedEnd end = EndSum(is_whole ? p.sinks : nullptr, row.h, max, sum);
  if (!is_whole) {
    p.parts_lse[row.InParts(p)] = end.lse;
  } else if (p.lse) {
    p.lse[p.At(p.lse_steps, row.h, row.token)] = end.lse * 0.69314718055994530942f;
  }
  return end.share;
}
// Where a row's values go.
template <typename T>
struct PagedTarget {
  T* out;
  float* part;  // nullptr: to out
  __device__ PagedTarget(const PagedView& p, const PagedRow& row)
      : out(static_cast<T*>(p.out) + p.At(p.out_steps, row.h, row.token)),
        part(p.count == 1 ? nullptr : p.parts + row.InParts(p) * p.E) {}
  __device__ void Write(int e, float value) const {
    if (part) {
      part[e] = value;
    } else {
      out[e] = Narrow<T>(value);
    }
  }
  __device__ void Add(int e, float value) const {
    if (part) {
      part[e] += value;
    } else {
      out[e] = Narrow<T>(Widen(out[e]) + value);
    }
  }
};

template <typename C>
__device__ float WidenCached(C v) {
  return Widen(v);
}
__device__ inline float WidenCached(uint8_t v) {
  return WidenLow(__half(), WidenTwo<Operand::kE4M3>(v));
}

// What a wrong cu_seqlens_q gives: NaN for all.
template <typename T>
__device__ void FillPagesWithNan(const PagedView& p, int g, int begin, int step) {
  for (int64_t token = begin; token < p.S; token += step)
    for (int h = g * p.group; h < (g + 1) * p.group; ++h) {
      T* to = static_cast<T*>(p.out) + p.At(p.out_steps, h, token);
      for (int e = threadIdx.x; e < p.E; e += blockDim.x) to[e] = Narrow<T>(NAN);
      if (p.lse && threadIdx.x == 0) p.lse[p.At(p.lse_steps, h, token)] = NAN;
    }
}

// The sequence of a token, -1 for none.
__device__ inline int SequenceOf(const PagedView& p, int token) {
  if (!p.cu_q) return token / p.each;
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

// ---- host ----

// Whether all rows lie as 16 bytes and their multiples.
inline bool HasAlignedPages(const AnyopTensor& x) {
  const int64_t per = 128 / x.dtype_bits;
  bool aligned = IsAligned(static_cast<const char*>(x.data), 16) && x.shape[x.ndim - 1] % per == 0;
  for (int d = 0; d < x.ndim - 1; ++d) aligned &= x.strides[d] % per == 0 || x.shape[d] <= 1;
  return aligned;
}

}  // namespace
}  // namespace anyop::cuda
