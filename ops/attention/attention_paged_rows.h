// SPDX-License-Identifier: Apache-2.0
// What attention to pages does with a tile of keys: it comes by cp.async, a warp multiplies, weighs
// and sums. 8-bit floats are widened in registers by warps that have keys of their own, else once
// for all in shared memory.
#pragma once

#include "attention_mma.h"
#include "attention_paged_view.h"

namespace anyop::cuda {
namespace {

// kShares: at most kSharedRows rows, which the four warps share.
template <typename T, typename C, int kFeatures, bool kShares>
struct PagedTile {
  static constexpr int kStages = kFeatures == 256 ? 2 : 3;
  static constexpr int kRows = kShares ? kSharedRows : kPagedRows;
  static constexpr bool kIsWide = sizeof(C) == sizeof(T), kWidens = !kIsWide && !kShares;
  static constexpr uint32_t kWideBytes = kPagedKeys * kFeatures * 2;
  static constexpr uint32_t kKeyBytes = kPagedKeys * kFeatures * sizeof(C);
  static constexpr uint32_t kQueryBytes = kPagedRows * kFeatures * 2;
  // Queries that are kept in registers lie where 8-bit floats are widened, or in the last stage.
  static constexpr bool kKeeps = kFeatures < 256;
  static constexpr uint32_t kWiden = kKeeps ? 0 : kQueryBytes;
  static constexpr uint32_t kRing = kWiden + (kWidens ? 2 * kWideBytes : 0);
  static constexpr uint32_t kSharedBytes = kRing + kStages * 2 * kKeyBytes;
  static constexpr uint32_t kQueries = kKeeps && !kWidens ? (kStages - 1) * 2 * kKeyBytes : 0;
};

// A byte of a stage of 8-bit floats; piece counts 16 of a row. The same piece of eight rows lies in
// all banks, and so do four pieces of two rows.
template <int kFeatures>
__device__ uint32_t InBytes(uint32_t row, uint32_t piece) {
  if constexpr (kFeatures == 64) return row * 64 + 16 * (piece ^ row / 2 % 4);
  return piece / 8 * (kPagedKeys * 128) + row * 128 +
         16 * (piece % 8 ^ (row % 2 * 4 + row / 2 % 4));
}

// Rows of keys, or of values (kValues), to a stage, zeroes where there is none; kAtOnce of a
// thread's copies stand side by side.
template <bool kValues, int kFeatures, int kAtOnce, typename C>
__device__ void FillPages(uint32_t to, const C* cache, const RowPlace* rows, int width,
                          bool aligned) {
  constexpr int kEach = 16 / sizeof(C), kPieces = kFeatures / kEach;
  const int piece = threadIdx.x % kPieces, first = threadIdx.x / kPieces;
  const int left = width - kEach * piece;
  const C* column = cache + kEach * piece;
  const auto target = [&](int row) {
    return to + (sizeof(C) == 2 ? InTile<kPagedKeys>(row, piece) : InBytes<kFeatures>(row, piece));
  };
  const auto place = [&](int row) {
    const int64_t at = kValues ? rows[row].v : rows[row].k;
    return left > 0 ? at : RowPlace::kNone;
  };
  if (aligned) {
#pragma unroll kAtOnce
    for (int i = 0; i < kPagedKeys * kPieces / 128; ++i) {
      const int row = first + 128 / kPieces * i;
      const int64_t at = place(row);
      const bool is_there = at != RowPlace::kNone;
      CopyAside(target(row), is_there ? column + at : cache, is_there);
    }
    return;
  }
#pragma unroll 1
  for (int row = first; row < kPagedKeys; row += 128 / kPieces) {
    const int64_t at = place(row);
    uint32_t words[4] = {};
#pragma unroll 1
    for (int e = 0; at != RowPlace::kNone && e < kEach && e < left; ++e) {
      const uint32_t bits = sizeof(C) == 2 ? reinterpret_cast<const uint16_t*>(column + at)[e]
                                           : reinterpret_cast<const uint8_t*>(column + at)[e];
#pragma unroll
      for (int w = 0; w < 4; ++w)  // no index into registers
        if (w == e * static_cast<int>(sizeof(C)) / 4) words[w] |= bits << 8 * (e * sizeof(C) % 4);
    }
    StoreShared(target(row), words);
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
    CopyPiece(to + InTile<kPagedRows>(r, piece), q, left, p.q_aligned);
  }
}

// The low two of four 8-bit floats.
template <typename T>
__device__ uint32_t WidenBytes(uint32_t four) {
  const uint32_t wide = WidenTwo<Operand::kE4M3>(four & 0xffff);
  if constexpr (std::is_same_v<T, __half>) return wide;
  return NarrowTwo(T(), WidenLow(__half(), wide), WidenHigh(__half(), wide));
}

// As CleanTile, of a stage of 8-bit floats.
template <int kFeatures>
__device__ void CleanBytes(uint32_t stage, int keys, volatile bool* is_bad) {
  constexpr int kPieces = kFeatures / 16;
#pragma unroll 1
  for (int i = threadIdx.x; i < kPagedKeys * kPieces; i += 128) {
    const int row = i / kPieces;
    const uint32_t place = stage + InBytes<kFeatures>(row, i % kPieces);
    uint32_t words[4], any = 0;
    LoadShared(words, place);
#pragma unroll
    for (uint32_t& word : words) {
      const uint32_t bad = ((word & 0x7f7f7f7f) + 0x01010101) & 0x80808080;  // NaN: 0x7f and a sign
      any |= bad, word &= ~((bad >> 7) * 0xff);
    }
    if (!any) continue;
    if (row < keys) *is_bad = true;
    StoreShared(place, words);
  }
}

// A stage of 8-bit floats as a tile of T.
template <typename T, int kFeatures>
__device__ void WidenPages(uint32_t to, uint32_t from) {
  constexpr int kPieces = kFeatures / 16;
#pragma unroll 2
  for (int i = 0; i < kPagedKeys * kPieces / 128; ++i) {
    const int at = static_cast<int>(threadIdx.x) + 128 * i, row = at / kPieces,
              piece = at % kPieces;
    uint32_t bytes[4];
    LoadShared(bytes, from + InBytes<kFeatures>(row, piece));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t words[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) words[w] = WidenBytes<T>(bytes[2 * half + w / 2] >> 16 * (w % 2));
      StoreShared(to + InTile<kPagedKeys>(row, 2 * piece + half), words);
    }
  }
}

// What a warp has of 16 rows and kKeys keys of a tile, as WarpRows. kBytes: keys and values are
// 8-bit floats. Then a lane's pairs of features for four products are 16 neighbours, its pairs of
// columns four, and values are multiplied in float16, weights times 2^15.
template <typename T, int kFeatures, int kKeys, bool kBytes>
struct PagedWarp {
  static constexpr float kLog2E = 1.44269504088896340736f;
  static constexpr float kWeight = kBytes ? 32768 : 1;
  static constexpr bool kKeeps = kFeatures < 256;  // queries in registers
  uint32_t q[kKeeps ? kFeatures / 16 : 1][4], tile, row;
  float out[kFeatures / 8][4] = {}, scores[kKeys / 8][4];
  float max[2] = {-INFINITY, -INFINITY}, sum[2] = {}, slope[2];
  int at[2], first[2], end[2];  // the key at which a row's query lies; those that it sees

  __device__ static int Lane() { return threadIdx.x % 32; }
  // The feature of out[n][c], and of out[n][c + 2].
  __device__ static int FeatureOf(int n, int c) {
    return kBytes ? n / 2 * 16 + Lane() % 4 * 4 + 2 * c + n % 2 : 8 * n + Lane() % 4 * 2 + c;
  }

  // Of a tile of queries from `row` on.
  __device__ void LoadQueries(uint32_t queries, int from) {
    tile = queries, row = from;
#pragma unroll
    for (int h = 0; kKeeps && h < kFeatures / 16; ++h) LoadStep(q[h], h);
  }
  __device__ void LoadStep(uint32_t (&words)[4], int h) const {
    const uint32_t lane = ComputedHere(threadIdx.x) % 32;
    if constexpr (kBytes) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t eight[4];
        const uint32_t piece = h / 4 * 8 + lane % 4 * 2 + h % 4 / 2;
        LoadShared(eight, tile + InTile<kPagedRows>(row + lane / 4 + 8 * half, piece));
        words[half] = eight[h % 2 * 2], words[2 + half] = eight[h % 2 * 2 + 1];
      }
    } else {
      LoadMatrices(words, tile + InTile<kPagedRows>(row + lane % 16, 2 * h + lane / 16));
    }
  }
  // Of keys from row `from` of the tile on.
  __device__ void Multiply(uint32_t k, int from) {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) scores[n][c] = 0;
#pragma unroll
    for (int h = 0; h < kFeatures / 16; h += kBytes ? 4 : 1) {
      if constexpr (kBytes) {
        MultiplyBytes(k, from, h);
      } else {
        MultiplyStep(k, from, h);
      }
    }
  }
  // Of the tile's rows from `row` on.
  __device__ void SetRows(const PagedView& p, const PagedKeys& keys, int row, int g) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int r = row + Lane() / 4 + 8 * half, s = r / p.group;
      at[half] = s + keys.offset, first[half] = keys.First(s), end[half] = keys.End(s);
      slope[half] = p.slopes ? p.slopes[g * p.group + r % p.group] * kLog2E : 0;
    }
  }
  // To scores as multiples of ln 2; t: the first key; cut: not all rows see all keys.
  __device__ void SetScores(const PagedView& p, float scale, int t, bool cut) {
    if (p.softcap > 0) {
      const float steep = 2 * scale * kLog2E / p.softcap, cap = p.softcap * kLog2E;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (float& score : scores[n])  // tanh(x) = 1 - 2 / (exp(2 x) + 1)
          score = cap - 2 * cap * Reciprocal(PowerOfTwo(score * steep) + 1);
    } else {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (float& score : scores[n]) score *= scale * kLog2E;
    }
    if (!cut && !p.slopes) return;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int key = t + 8 * n + Lane() % 4 * 2 + c % 2, half = c / 2;
        scores[n][c] -= slope[half] * fabsf(static_cast<float>(at[half] - key));
        if (key < first[half] || key >= end[half]) scores[n][c] = -INFINITY;
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
  __device__ void AddValues(uint32_t v, int from) {
    using Weight = std::conditional_t<kBytes, __half, T>;
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      uint32_t a[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const float* two = scores[2 * n + w / 2] + w % 2 * 2;
        a[w] = NarrowTwo(Weight(), two[0] * kWeight, two[1] * kWeight);
      }
      if constexpr (kBytes) {
        AddBytes(a, v, from + 16 * n);
      } else {
        AddTile(a, v, from + 16 * n);
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

 private:
  __device__ void MultiplyStep(uint32_t k, int from, int h) {
    const uint32_t lane = ComputedHere(threadIdx.x) % 32;
    uint32_t (&a)[4] = q[kKeeps ? h : 0];
    if (!kKeeps) LoadStep(a, h);
#pragma unroll
    for (int n = 0; n < kKeys / 16; ++n) {
      uint32_t b[4];
      LoadMatrices(b, k + InTile<kPagedKeys>(from + 16 * n + lane % 8 + lane / 16 * 8,
                                             2 * h + lane / 8 % 2));
      MultiplyAdd<kOperandOf<T>>(scores[2 * n], a, b[0], b[1]);
      MultiplyAdd<kOperandOf<T>>(scores[2 * n + 1], a, b[2], b[3]);
    }
  }
  // Four steps.
  __device__ void MultiplyBytes(uint32_t k, int from, int h) {
    const uint32_t lane = ComputedHere(threadIdx.x) % 32;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) {
      uint32_t bytes[4];
      LoadShared(bytes, k + InBytes<kFeatures>(from + 8 * n + lane / 4, h + lane % 4));
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        uint32_t (&a)[4] = q[kKeeps ? h + w : 0];
        if (!kKeeps) LoadStep(a, h + w);
        MultiplyAdd<kOperandOf<T>>(scores[n], a, WidenBytes<T>(bytes[w]),
                                   WidenBytes<T>(bytes[w] >> 16));
      }
    }
  }
  // out += 16 weights of each row times values from row `from` on.
  __device__ void AddTile(const uint32_t (&a)[4], uint32_t v, int from) {
    const uint32_t lane = ComputedHere(threadIdx.x) % 32;
#pragma unroll
    for (int e = 0; e < kFeatures / 16; ++e) {
      uint32_t b[4];
      LoadTransposed(b, v + InTile<kPagedKeys>(from + lane % 16, 2 * e + lane / 16));
      MultiplyAdd<kOperandOf<T>>(out[2 * e], a, b[0], b[1]);
      MultiplyAdd<kOperandOf<T>>(out[2 * e + 1], a, b[2], b[3]);
    }
  }
  // Two neighbouring bytes are transposed as one: of two keys the even, and then the odd feature.
  __device__ void AddBytes(const uint32_t (&a)[4], uint32_t v, int from) {
    const uint32_t lane = ComputedHere(threadIdx.x) % 32;
#pragma unroll
    for (int e = 0; e < kFeatures / 32; ++e) {
      uint32_t b[4];
      LoadTransposed(b, v + InBytes<kFeatures>(from + lane % 16, 2 * e + lane / 16));
#pragma unroll
      for (uint32_t& bytes : b)
        bytes = (bytes & 0xff0000ff) | (bytes >> 8 & 0xff00) | (bytes & 0xff00) << 8;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const uint32_t low = b[n / 2 * 2] >> 16 * (n % 2), high = b[n / 2 * 2 + 1] >> 16 * (n % 2);
        MultiplyAdd<Operand::kFloat16>(out[4 * e + n], a, WidenBytes<__half>(low),
                                       WidenBytes<__half>(high));
      }
    }
  }
};

}  // namespace
}  // namespace anyop::cuda
