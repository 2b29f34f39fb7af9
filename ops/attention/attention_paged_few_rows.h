// SPDX-License-Identifier: Apache-2.0
// Attention of few rows to pages: what a warp does with 16 keys from registers, where a
// group has at most eight rows. Loads of 16 bytes are as mma.sync takes them, with features in an
// order of their own. Scores are queries times keys, sums are values transposed times weights.
// 8-bit floats are widened to float16, and queries are then multiplied in float16, too.
#pragma once

#include "attention_mma.h"
#include "attention_paged_view.h"

namespace anyop::cuda {
namespace {

constexpr int kFewRows = 8, kFewKeys = 16;

// As PagedView, no more than is read: what a kernel is given comes by lines of 64 bytes. One query
// of each sequence; places of a page are a power of two, of 16 and more; steps of queries and
// caches count 16 bytes, and both caches have the same.
struct FewView {
  const int32_t *table, *lengths;
  const uint4 *q, *k, *v;
  uint32_t q_token, q_head, page, place, head;
  int M, N, places, group, page_shift, left;
  int shift;  // blocks of a cluster are 1 << shift
  int part;   // keys of a part
  // Scores times steep are multiples of ln 2, or cap - 2 cap / (2^that + 1).
  float steep, cap;
  int out_token, out_head, lse_token, lse_head, k_scale_step, v_scale_step;
  void* out;
  float *lse, *parts, *parts_lse;  // nullptr: not wanted; one part
  const float *sinks, *k_scale, *v_scale;

  __device__ int EntryOf(int b, int t) const {
    return t < places ? table[int64_t{b} * M + (t >> page_shift)] : -1;
  }
  // Steps to the place of key t in a page that is there.
  __device__ uint32_t At(int entry, int t, int g) const {
    return entry * page + (t & ((1 << page_shift) - 1)) * place + g * head;
  }
};

// The low or high halves of a and b, or their low or high two bytes in turn.
__device__ inline uint32_t PairHalves(uint32_t a, uint32_t b, bool high) {
#if ANYOP_PTX
  return __byte_perm(a, b, high ? 0x7632 : 0x5410);
#else
  return high ? a >> 16 | (b & 0xffff0000) : (a & 0xffff) | b << 16;
#endif
}
__device__ inline uint32_t PairBytes(uint32_t a, uint32_t b, bool high) {
#if ANYOP_PTX
  return __byte_perm(a, b, high ? 0x7362 : 0x5140);
#else
  if (high) a >>= 16, b >>= 16;
  return (a & 0xff) | (b & 0xff) << 8 | (a & 0xff00) << 8 | (b & 0xff00) << 16;
#endif
}

template <typename T, typename C, int kFeatures>
struct FewWarp {
  static constexpr bool kBytes = sizeof(C) == 1;
  static_assert(!kBytes || kFeatures == 128, "");
  static constexpr Operand kType = kBytes ? Operand::kFloat16 : kOperandOf<T>;
  static constexpr float kWeight = kBytes ? 32768 : 1;  // what weights are multiplied by
  // Of 16 bytes: features, pieces of a key and of a value.
  static constexpr int kEach = 16 / sizeof(C), kPieces = kFeatures / kEach / 4,
                       kHalves = kFeatures / kEach / 8, kSums = kFeatures / 16;
  // Of keys lane / 4 and 8 behind, of values as KeyOfValue says.
  struct Loaded {
    uint4 k[2][kPieces], v[4][kHalves];
  };
  uint32_t q[kFeatures / 16][2];  // of row lane / 4
  float out[kSums][4] = {}, max = -INFINITY, sum = 0, steep;

  __device__ static int Lane() { return threadIdx.x % 32; }
  __device__ static int KeyOfValue(int n) { return n / 2 * 8 + Lane() % 4 * 2 + n % 2; }
  __device__ static uint32_t WordOf(const uint4& v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
  }
  // The feature of out[f % kSums][f / kSums * 2 + c], of row lane % 4 * 2 + c.
  __device__ static int FeatureOf(int f) {
    return (Lane() / 4 + f / kEach * 8) * kEach + f % kEach;
  }
  __device__ float OutOf(int c, int f) const { return out[f % kSums][f / kSums * 2 + c]; }

  __device__ void LoadQueries(const FewView& p, int b, int g) {
    const int row = Lane() / 4, h = g * p.group + (row < p.group ? row : 0);
    const uint4* from = p.q + (uint64_t{p.q_token} * b + uint64_t{p.q_head} * h);
    steep = p.steep;
    uint4 pieces[kFeatures / 32];
#pragma unroll
    for (int i = 0; i < kFeatures / 32; ++i)
      pieces[i] = from[kBytes ? i / 2 * 8 + Lane() % 4 * 2 + i % 2 : Lane() % 4 + 4 * i];
#pragma unroll
    for (int i = 0; i < kFeatures / 16; ++i)
#pragma unroll
      for (int w = 0; w < 2; ++w) q[i][w] = WordOf(pieces[i / 2], i % 2 * 2 + w);
    if constexpr (kBytes && !std::is_same_v<T, __half>) ToFloat16();
  }
  // 16 keys from `at` of the caches on, a multiple of 16 bytes.
  __device__ static void Load(const FewView& p, uint32_t at, Loaded* to) {
    const uint4* k = p.k + (at + Lane() / 4 * p.place + Lane() % 4);
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < kPieces; ++i) to->k[n][i] = k[8 * n * p.place + 4 * i];
    const uint4* v = p.v + (at + Lane() % 4 * 2 * p.place + Lane() / 4);
#pragma unroll
    for (int n = 0; n < 4; ++n)
#pragma unroll
      for (int i = 0; i < kHalves; ++i) to->v[n][i] = v[(n / 2 * 8 + n % 2) * p.place + 8 * i];
  }
  // Keys t to t + 15, of which those from first on and before end count.
  __device__ void Add(const FewView& p, Loaded& of, int t, int first, int end, bool is_first) {
    float scores[4] = {}, most = max;  // of row lane / 4, keys as of KeyOfValue
    Multiply(of, scores);
#pragma unroll
    for (float& score : scores) score *= steep;
    if (p.cap > 0) {  // tanh(x) = 1 - 2 / (exp(2 x) + 1)
#pragma unroll
      for (float& score : scores) score = p.cap - 2 * p.cap * Reciprocal(PowerOfTwo(score) + 1);
    }
    if (t < first || t + kFewKeys > end) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = t + KeyOfValue(i);
        if (key >= first && key < end) continue;
        scores[i] = -INFINITY;
#pragma unroll
        for (uint4& piece : of.v[i]) piece = {};
      }
    }
#pragma unroll
    for (float score : scores) most = fmaxf(most, score);
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
    most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
    const float base = most == -INFINITY ? 0 : most, factor = PowerOfTwo(max - base);
    max = most, sum *= factor;
#pragma unroll
    for (float& score : scores) score = PowerOfTwo(score - base), sum += score;
    if (!is_first) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float of_row = __shfl_sync(~0u, factor, (Lane() % 4 * 2 + c) * 4);
#pragma unroll
        for (int i = 0; i < kSums; ++i) out[i][c] *= of_row, out[i][c + 2] *= of_row;
      }
    }
    AddValues(of, scores);
  }
  __device__ void EndSum() {
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
  }

 private:
  __device__ void Multiply(const Loaded& of, float (&scores)[4]) const {
    float sums[2][4] = {};  // of the rows eight behind, which are none, too
#pragma unroll
    for (int i = 0; i < kFeatures / 16; ++i) {
      const uint32_t rows[4] = {q[i][0], 0, q[i][1], 0};
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        if constexpr (kBytes) {
          const uint32_t four = WordOf(of.k[n][i / 4], i % 4);
          MultiplyAdd<kType>(sums[n], rows, WidenTwo<Operand::kE4M3>(four & 0xffff),
                             WidenTwo<Operand::kE4M3>(four >> 16));
        } else {
          MultiplyAdd<kType>(sums[n], rows, WordOf(of.k[n][i / 2], i % 2 * 2),
                             WordOf(of.k[n][i / 2], i % 2 * 2 + 1));
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[i] = sums[i / 2][i % 2];
  }
  __device__ void AddValues(const Loaded& of, const float (&scores)[4]) {
    using Weight = std::conditional_t<kBytes, __half, T>;
    uint32_t weights[2];
#pragma unroll
    for (int n = 0; n < 2; ++n)
      weights[n] = NarrowTwo(Weight(), scores[2 * n] * kWeight, scores[2 * n + 1] * kWeight);
#pragma unroll
    for (int i = 0; i < kSums; ++i) {
      uint32_t features[4];  // i and i + kSums of keys below 8, then of those above
#pragma unroll
      for (int w = 0; w < 4; ++w) features[w] = PairOf(of.v, i + w % 2 * kSums, w / 2);
      MultiplyAdd<kType>(out[i], features, weights[0], weights[1]);
    }
  }
  // Feature f of values 2 n and 2 n + 1.
  __device__ static uint32_t PairOf(const uint4 (&v)[4][kHalves], int f, int n) {
    constexpr int kInWord = 4 / sizeof(C);
    const uint32_t a = WordOf(v[2 * n][f / kEach], f % kEach / kInWord);
    const uint32_t b = WordOf(v[2 * n + 1][f / kEach], f % kEach / kInWord);
    if constexpr (kBytes) {
      const uint32_t two = PairBytes(a, b, f % 4 / 2);
      return WidenTwo<Operand::kE4M3>(f % 2 ? two >> 16 : two & 0xffff);
    }
    return PairHalves(a, b, f % 2);
  }
  // A row times the power of two with which its greatest number is from 2^14 on.
  __device__ void ToFloat16() {
    uint32_t most = 0;
#pragma unroll
    for (auto& two : q)
#pragma unroll
      for (uint32_t word : two) most = std::max(most, std::max(word & 0x7fff, word >> 16 & 0x7fff));
    most = std::max(most, __shfl_xor_sync(~0u, most, 1));
    most = std::max(most, __shfl_xor_sync(~0u, most, 2));
    const uint32_t exponent = std::max(most >> 7, 15u);
    const float factor = __uint_as_float((268 - exponent) << 23);
    steep *= __uint_as_float((exponent - 14) << 23);
#pragma unroll
    for (auto& two : q)
#pragma unroll
      for (uint32_t& word : two)
        word = NarrowTwo(__half(), WidenLow(T(), word) * factor, WidenHigh(T(), word) * factor);
  }
};

}  // namespace
}  // namespace anyop::cuda
