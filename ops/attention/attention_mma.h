// SPDX-License-Identifier: Apache-2.0
// Attention in float16 and bfloat16 on every GPU from Ampere on, by mma.sync.
//
// A block has a tile of queries of one head, four warps with kBlocks times 16 of them each. Tiles
// of keys and values that one of the queries may see come by cp.async, one ahead of the products; a
// tile is panels of 64 features, rows of 128 bytes. Scores, weights and sums stay in registers, in
// float32; weights are rounded to the type of the values for their product. Nothing is split or
// added in another order, so that a query's bits depend on nothing but its own keys.
#pragma once

#include "attention_cuda.h"

namespace anyop::cuda {
namespace {

template <typename T>
constexpr Operand kOperandOf =
    std::is_same_v<T, __nv_bfloat16> ? Operand::kBFloat16 : Operand::kFloat16;

template <int kFeatures>
struct MmaTile {
  static constexpr int kBlocks = kFeatures <= 128 ? 2 : 1, kThreads = 128;
  static constexpr int kRows = 64 * kBlocks, kKeys = kFeatures <= 64 ? 64 : 32;
  static constexpr uint32_t kRowBytes = 2 * kFeatures;
  static constexpr uint32_t kQueryBytes = kRows * kRowBytes, kKeyBytes = kKeys * kRowBytes;
  static constexpr uint32_t kStageBytes = 2 * kKeyBytes;
  static constexpr uint32_t kSharedBytes = kQueryBytes + 2 * kStageBytes;
};

// A byte of a tile of kRows rows: piece counts 16 bytes of a row.
template <int kRows>
__device__ uint32_t InTile(uint32_t row, uint32_t piece) {
  return piece / 8 * (kRows * 128) + Swizzled(row, piece % 8);
}

// Eight numbers to 16 bytes of shared memory, zeroes behind the first `left`. aligned: they lie as
// 16 bytes, all or none.
template <typename T>
__device__ void CopyPiece(uint32_t to, const T* from, int left, bool aligned) {
  if (aligned) return CopyAside(to, from, left > 0);
  uint32_t words[4] = {};
#pragma unroll
  for (int e = 0; e < 8; ++e)
    if (e < left)
      words[e / 2] |= uint32_t{reinterpret_cast<const uint16_t*>(from)[e]} << 16 * (e % 2);
  StoreShared(to, words);
}

// Rows of `width` elements to a tile, zeroes where there is none.
template <int kRows, int kFeatures, typename T>
__device__ void FillTile(uint32_t to, const T* from, int64_t step, int rows, int width,
                         bool aligned) {
  constexpr int kPieces = kFeatures / 8;
#pragma unroll 2
  for (int i = 0; i < kRows * kPieces / 128; ++i) {
    const int at = static_cast<int>(threadIdx.x) + 128 * i, row = at / kPieces;
    const int piece = at % kPieces, left = row < rows ? width - 8 * piece : 0;
    const T* place = from + (left > 0 ? row * step + 8 * piece : 0);
    CopyPiece(to + InTile<kRows>(row, piece), place, left, aligned);
  }
}

template <typename T>
__device__ bool IsBad(uint32_t half) {  // NaN or infinity
  constexpr uint32_t kExponent = kOperandOf<T> == Operand::kBFloat16 ? 0x7f80 : 0x7c00;
  return (half & kExponent) == kExponent;
}

// Puts zeroes for NaN and infinities into a tile of values, by kThreads, each its own pieces.
// *is_bad: whether there were any in the first `keys` rows; the others are read by no query.
template <int kRows, int kFeatures, typename T, int kThreads = 128>
__device__ void CleanTile(uint32_t tile, int thread, int keys, volatile bool* is_bad) {
  constexpr int kPieces = kFeatures / 8;
  // An exponent of ones, and one more, is the sign's bit.
  constexpr bool kIsBrain = kOperandOf<T> == Operand::kBFloat16;
  constexpr uint32_t kExponents = kIsBrain ? 0x7f807f80 : 0x7c007c00;
  constexpr uint32_t kOnes = kIsBrain ? 0x00800080 : 0x04000400;
  uint32_t any = 0;
#pragma unroll 4
  for (int i = 0; i < kRows * kPieces / kThreads; ++i) {
    const int at = thread + kThreads * i;
    uint32_t words[4];
    LoadShared(words, tile + InTile<kRows>(at / kPieces, at % kPieces));
#pragma unroll
    for (const uint32_t word : words) any |= (word & kExponents) + kOnes;
  }
  if (!(any & 0x80008000)) return;
#pragma unroll 1
  for (int i = 0; i < kRows * kPieces / kThreads; ++i) {
    const int at = thread + kThreads * i, row = at / kPieces;
    const uint32_t place = tile + InTile<kRows>(row, at % kPieces);
    uint32_t words[4];
    LoadShared(words, place);
    bool here = false;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      const bool low = IsBad<T>(words[w]), high = IsBad<T>(words[w] >> 16);
      if (low) words[w] &= 0xffff0000u;
      if (high) words[w] &= 0xffffu;
      here |= low || high;
    }
    if (!here) continue;
    if (row < keys) *is_bad = true;
    StoreShared(place, words);
  }
}

// Mask and slopes for the scores of a lane, one after the other, in memory of the thread and apart
// from the loop: as many copies of this would cost calls without a mask registers, too. s, t: the
// lane's first query and key. Scores become multiples of ln 2.
template <typename T, int kBlocks, int kKeys>
__device__ __attribute__((noinline)) void AddBiasTo(const AttentionView& p, const Place& place,
                                                    int s, int t, float* scores) {
#pragma unroll 1
  for (int i = 0; i < kBlocks * kKeys / 2; ++i) {
    const int query = s + i / (kKeys / 2) * 16 + i % 4 / 2 * 8;
    const int key = t + i % (kKeys / 2) / 4 * 8 + i % 2;
    if (query < p.S && key < p.T) scores[i] += BiasOf<T, float>(p, place, query, key);
    scores[i] *= 1.44269504088896340736f;
  }
}

// What a warp has of its queries: lane l holds of rows l / 4 (+ 8) of each block of 16 columns
// l % 4 * 2 (+ 1) of each 8.
template <typename T, int kFeatures>
struct WarpRows {
  using Tile = MmaTile<kFeatures>;
  static constexpr int kBlocks = Tile::kBlocks, kKeys = Tile::kKeys;
  static constexpr float kLog2E = 1.44269504088896340736f;
  float out[kBlocks][kFeatures / 8][4] = {};
  float max[kBlocks][2], sum[kBlocks][2] = {};
  float scores[kBlocks][kKeys / 8][4];
  int s;  // the warp's first query

  __device__ explicit WarpRows(int s) : s(s) {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m) max[m][0] = max[m][1] = -INFINITY;
  }
  __device__ static int Lane() { return threadIdx.x % 32; }
  __device__ int Query(int m, int half) const { return s + 16 * m + 8 * half + Lane() / 4; }

  // q: the tile of all queries, k: of keys.
  __device__ void Multiply(uint32_t q, uint32_t k) {
    const uint32_t thread = ComputedHere(threadIdx.x);
    const uint32_t lane = thread % 32, row = thread / 32 * 16 * kBlocks;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) scores[m][n][c] = 0;
#pragma unroll
    for (int h = 0; h < kFeatures / 16; ++h) {
      uint32_t a[kBlocks][4];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m)
        LoadMatrices(a[m], q + InTile<Tile::kRows>(row + 16 * m + lane % 16, 2 * h + lane / 16));
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        uint32_t b[4];
        LoadMatrices(b, k + InTile<kKeys>(16 * n + lane % 8 + lane / 16 * 8, 2 * h + lane / 8 % 2));
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
          MultiplyAdd<kOperandOf<T>>(scores[m][2 * n], a[m], b[0], b[1]);
          MultiplyAdd<kOperandOf<T>>(scores[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  // Products to scores as multiples of ln 2; t: the tile's first key; cut: not all are seen by all.
  __device__ void SetScores(const AttentionView& p, const Place& place, int t, bool cut) {
    const bool plain = p.IsPlain();
    const float scale = static_cast<float>(p.scale) * (plain ? kLog2E : 1);
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) scores[m][n][c] *= scale;
    if (!plain) AddOptions(p, place, t);
    if (!cut) return;
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int first = p.First(Query(m, half)) - t, end = p.End(Query(m, half)) - t;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const int key = 8 * n + Lane() % 4 * 2 + c;
            if (key < first || key >= end) scores[m][n][2 * half + c] = -INFINITY;
          }
      }
  }
  __device__ void AddOptions(const AttentionView& p, const Place& place, int t) {
    if (p.softcap > 0) {
      const auto cap = static_cast<float>(p.softcap), steep = 2 * kLog2E / cap;
#pragma unroll
      for (int m = 0; m < kBlocks; ++m)
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
          for (int c = 0; c < 4; ++c)  // tanh(x) = 1 - 2 / (exp(2 x) + 1)
            scores[m][n][c] = cap - 2 * cap * Reciprocal(PowerOfTwo(scores[m][n][c] * steep) + 1);
    }
    if (p.slopes || p.mask_kind != MaskKind::kNone) {
      AddBias(p, place, t);
      return;
    }
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int c = 0; c < 4; ++c) scores[m][n][c] *= kLog2E;
  }
  __device__ void AddBias(const AttentionView& p, const Place& place, int t) {
    float kept[kBlocks * kKeys / 2];
#pragma unroll
    for (int i = 0; i < kBlocks * kKeys / 2; ++i)
      kept[i] = scores[i / (kKeys / 2)][i % (kKeys / 2) / 4][i % 4];
    AddBiasTo<T, kBlocks, kKeys>(p, place, Query(0, 0), t + Lane() % 4 * 2, kept);
#pragma unroll
    for (int i = 0; i < kBlocks * kKeys / 2; ++i)
      scores[i / (kKeys / 2)][i % (kKeys / 2) / 4][i % 4] = kept[i];
  }

  // Scores to weights; what is there so far to the new maximum.
  __device__ void Weigh() {
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float most = max[m][half];
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n)
          most = fmaxf(most, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        const float base = most == -INFINITY ? 0 : most;
        const float factor = PowerOfTwo(max[m][half] - base);
        max[m][half] = most;
        float total = 0;
#pragma unroll
        for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
          for (int c = 2 * half; c < 2 * half + 2; ++c) {
            scores[m][n][c] = PowerOfTwo(scores[m][n][c] - base);
            total += scores[m][n][c];
          }
        sum[m][half] = sum[m][half] * factor + total;
#pragma unroll
        for (int n = 0; n < kFeatures / 8; ++n)
#pragma unroll
          for (int c = 2 * half; c < 2 * half + 2; ++c) out[m][n][c] *= factor;
      }
  }

  // out += weights v.
  __device__ void AddValues(uint32_t v) {
    const uint32_t lane = ComputedHere(threadIdx.x) % 32;
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      uint32_t a[kBlocks][4];
#pragma unroll
      for (int m = 0; m < kBlocks; ++m)
#pragma unroll
        for (int w = 0; w < 4; ++w)
          a[m][w] = NarrowTwo(T(), scores[m][2 * n + w / 2][w % 2 * 2],
                              scores[m][2 * n + w / 2][w % 2 * 2 + 1]);
#pragma unroll
      for (int e = 0; e < kFeatures / 16; ++e) {
        uint32_t b[4];
        LoadTransposed(b, v + InTile<kKeys>(16 * n + lane % 16, 2 * e + lane / 16));
#pragma unroll
        for (int m = 0; m < kBlocks; ++m) {
          MultiplyAdd<kOperandOf<T>>(out[m][2 * e], a[m], b[0], b[1]);
          MultiplyAdd<kOperandOf<T>>(out[m][2 * e + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  // By the place of the warp's queries in shared memory, in rows of 16 bytes.
  __device__ void Write(const AttentionView& p, const Place& place, uint32_t q, bool* is_empty) {
    const int lane = Lane(), row = static_cast<int>(threadIdx.x) / 32 * 16 * kBlocks;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < kBlocks; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float total = sum[m][half];
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        const RowEnd<float> end = EndRow(p, place.h, max[m][half], total);
        const int query = Query(m, half);
        if (lane % 4 == 0) is_empty[row + 16 * m + 8 * half + lane / 4] = total == 0;
        if (p.lse && lane % 4 == 0 && query < p.S)
          p.lse[p.lse_steps.At(place.b, place.h, query)] = LogOf(end);
#pragma unroll
        for (int n = 0; n < kFeatures / 8; ++n) {
          const float low = out[m][n][2 * half], high = out[m][n][2 * half + 1];
          const uint32_t word = NarrowTwo(T(), low * end.share, high * end.share);
          StoreSharedWord(
              q + InTile<Tile::kRows>(row + 16 * m + 8 * half + lane / 4, n) + lane % 4 * 4,
              total == 0 ? 0 : word);
        }
      }
    __syncwarp();
    T* to = static_cast<T*>(p.out) + p.out_steps.At(place.b, place.h, s);
    constexpr int kPieces = kFeatures / 8;
#pragma unroll 1
    for (int i = 0; i < kBlocks * kPieces / 2; ++i) {
      const int at = lane + 32 * i, mine = at / kPieces, piece = at % kPieces;
      if (s + mine >= p.S || 8 * piece >= p.E) continue;
      uint32_t words[4];
      LoadShared(words, q + InTile<Tile::kRows>(row + mine, piece));
      T* target = to + mine * p.out_steps.row + 8 * piece;
      if (p.out_aligned) {
        *reinterpret_cast<uint4*>(target) = make_uint4(words[0], words[1], words[2], words[3]);
        continue;
      }
#pragma unroll
      for (int e = 0; e < 8; ++e)
        if (8 * piece + e < p.E)
          reinterpret_cast<uint16_t*>(target)[e] =
              static_cast<uint16_t>(words[e / 2] >> 16 * (e % 2));
    }
  }
};

// What CleanTile took away, added to the results of the queries that see it; twice does no harm.
// Rare, so that it may be slow.
template <typename T>
__device__ void AddBadValues(const AttentionView& p, const Place& place, const T* v, int top,
                             int rows, const bool* is_empty) {
  for (int at = threadIdx.x; at < rows * p.E; at += 128) {
    const int row = at / p.E, e = at - row * p.E, s = top + row;
    float bad = 0;
    for (int t = p.First(s); !is_empty[row] && t < p.End(s); ++t) {
      const float value = Widen(v[t * p.v_steps.row + e]);
      if (isfinite(value)) continue;  // a mask's weight of 0 times infinity is NaN
      bad += BiasOf<T, float>(p, place, s, t) == -INFINITY ? 0 * value : value;
    }
    T* to = static_cast<T*>(p.out) + p.out_steps.At(place.b, place.h, s) + e;
    if (!isfinite(bad)) *to = Narrow<T>(Widen(*to) + bad);
  }
}

template <typename T, int kFeatures>
__device__ __forceinline__ void AttendTile(const AttentionView& p, const Place& place) {
  using Tile = MmaTile<kFeatures>;
  __shared__ bool is_bad, is_empty[Tile::kRows];  // whether CleanTile took something away
  const uint32_t queries = DynamicSharedAddress();
  const int top = place.tile * Tile::kRows, last = p.Last(top, Tile::kRows), g = place.h / p.group;
  const int end = p.End(last);
  const T* k = static_cast<const T*>(p.k) + p.k_steps.At(place.b, g, 0);
  const T* v = static_cast<const T*>(p.v) + p.v_steps.At(place.b, g, 0);
  const auto fill = [&](int t, uint32_t to) {
    FillTile<Tile::kKeys, kFeatures>(to, k + t * p.k_steps.row, p.k_steps.row, p.T - t, p.D,
                                     p.k_aligned);
    FillTile<Tile::kKeys, kFeatures>(to + Tile::kKeyBytes, v + t * p.v_steps.row, p.v_steps.row,
                                     p.T - t, p.E, p.v_aligned);
  };
  if (threadIdx.x == 0) is_bad = false;
  FillTile<Tile::kRows, kFeatures>(queries,
                                   static_cast<const T*>(p.q) + p.q_steps.At(place.b, place.h, top),
                                   p.q_steps.row, p.S - top, p.D, p.q_aligned);
  uint32_t keys = queries + Tile::kQueryBytes, others = keys + Tile::kStageBytes;
  if (p.First(top) < end) fill(p.First(top), keys);
  CommitCopies();
  __syncthreads();  // is_bad is set before a tile is cleaned
  WarpRows<T, kFeatures> rows(top + static_cast<int>(threadIdx.x) / 32 * 16 * Tile::kBlocks);
  const int warp_first = p.First(rows.s);
  const int warp_end = rows.s < p.S ? p.End(p.Last(rows.s, 16 * Tile::kBlocks)) : 0;
  for (int t = p.First(top); t < end; t += Tile::kKeys) {
    const bool cut = t < p.First(last) || t + Tile::kKeys > p.End(top);
    WaitForCopies<0>();
    if (cut)
      CleanTile<Tile::kKeys, kFeatures, T>(keys + Tile::kKeyBytes, threadIdx.x, p.T - t, &is_bad);
    __syncthreads();  // this tile is there, and nobody reads the one before
    if (t + Tile::kKeys < end) fill(t + Tile::kKeys, others);
    CommitCopies();
    if (t < warp_end && t + Tile::kKeys > warp_first) {
      rows.Multiply(queries, keys);
      rows.SetScores(p, place, t, cut);
      rows.Weigh();
      rows.AddValues(keys + Tile::kKeyBytes);
    }
    const uint32_t next = others;
    others = keys, keys = next;
  }
  WaitForCopies<0>();
  __syncthreads();
  if (rows.s < p.S) rows.Write(p, place, queries, is_empty);
  __syncthreads();
  if (is_bad) AddBadValues(p, place, v, top, last + 1 - top, is_empty);
}

template <typename T, int kFeatures>
__global__ __launch_bounds__(128) void AttendByMma(const __grid_constant__ AttentionView p) {
  const int64_t item = ItemOf();
  if (item < p.items) AttendTile<T, kFeatures>(p, PlaceOf(p, item));
}

template <typename T, int kFeatures>
__global__ __launch_bounds__(128) void AttendPackedByMma(const __grid_constant__ AttentionView p) {
  using Tile = MmaTile<kFeatures>;
  __shared__ Packed own;
  if (EnterPacked<T, Tile::kThreads>(p, Tile::kRows, &own))
    AttendTile<T, kFeatures>(own.view, own.place);
}

}  // namespace
}  // namespace anyop::cuda
