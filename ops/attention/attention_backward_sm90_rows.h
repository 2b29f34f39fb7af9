// SPDX-License-Identifier: Apache-2.0
// Gradients of attention on Hopper: what a warpgroup does with its 64 keys and a tile of 64
// queries.
#pragma once

#include "attention_backward_sm90_tile.h"

namespace anyop::cuda {
namespace {

// Of keys `row` and row + 8, and queries 8 j + lane % 4 * 2 (+ 1).
template <typename T, typename Tile>
struct HopperKeyRows {
  static constexpr Operand kType = kOperandOf<T>;
  static constexpr int kPairs = Tile::kQueries / 2;  // of a thread
  float k[Tile::kWide / 2], more[Tile::kMore > 0 ? Tile::kMore / 2 : 1], v[Tile::kE / 2];
  float scores[kPairs], grads[kPairs];  // then weights times cap'(score), and slopes
  uint32_t weights[kPairs / 2], slopes[kPairs / 2];
  float q[Tile::kOwn / 2], q_more[Tile::kOwnMore > 0 ? Tile::kOwnMore / 2 : 1];

  // sums = 64 rows of a, of panels of keys, times a tile of queries.
  template <int kFeatures>
  __device__ static void Multiply(float (&sums)[kPairs], uint32_t a, uint32_t b) {
    FenceProducts();
#pragma unroll
    for (int i = 0; i < kFeatures / 16; ++i)
      Product<Tile::kQueries>::template Add<kType>(
          sums, TileOf(a + i / 4 * Tile::kKeyPanel) + 2 * (i % 4),
          TileOf(b + i / 4 * Tile::kQueryPanel) + 2 * (i % 4), i);
    CommitProducts();
  }
  // What `of` says of all keys, 64 queries of them for these.
  template <int kColumns, int kCount>
  __device__ static void AddQueries(float (&sums)[kCount], const uint32_t* of, uint32_t b) {
#pragma unroll
    for (int i = 0; i < Tile::kQueries / 16; ++i)
      Product<kColumns>::template AddRegisters<kType, 1>(
          sums, of + 4 * i, PanelsOf(b + i * 2048, Tile::kQueryPanel), 1);
  }
  __device__ void AddValues(uint32_t grads_at) {
    FenceProducts();
    AddQueries<Tile::kE>(v, weights, grads_at);
    CommitProducts();
  }
  __device__ void AddKeys(uint32_t queries) {
    FenceProducts();
    AddQueries<Tile::kWide>(k, slopes, queries);
    if constexpr (Tile::kMore > 0)
      AddQueries<Tile::kMore>(more, slopes, queries + Tile::kWide / 64 * Tile::kQueryPanel);
    CommitProducts();
  }
  // All queries, this warpgroup's columns of the keys.
  __device__ void GradeQueries(uint32_t slopes_at, uint32_t keys, int group) {
    FenceProducts();
    const uint32_t own = keys + (Tile::kOwn == 64 ? group * Tile::kKeyPanel : group * 64);
#pragma unroll
    for (int i = 0; i < Tile::kKeys / 16; ++i)
      Product<Tile::kOwn>::template AddTransposed<kType>(
          q, PanelsOf(slopes_at + i * 2048, 0), PanelsOf(own + i * 2048, Tile::kKeyPanel), i);
    if constexpr (Tile::kMore > 0) {
      const uint32_t behind = keys + Tile::kWide / 64 * Tile::kKeyPanel + group * 64;
#pragma unroll
      for (int i = 0; i < Tile::kKeys / 16; ++i)
        Product<Tile::kOwnMore>::template AddTransposed<kType>(
            q_more, PanelsOf(slopes_at + i * 2048, 0), PanelsOf(behind + i * 2048, 0), i);
    }
    CommitProducts();
  }
  // Products of queries and keys to weights. bases: of the lane's first query on.
  __device__ void Weigh(const HopperFactors& by, uint32_t bases) {
#pragma unroll
    for (int j = 0; j < Tile::kQueries / 8; ++j) {
      float base[2];
      LoadTwo(base, bases + 32 * j);
      float bends[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        float& score = scores[4 * j + c];
        if constexpr (Tile::kIsCapped) {
          const float part = Reciprocal(PowerOfTwo(score * by.steep) + 1);
          bends[c] = 4 * part * (1 - part);  // cap': tanh is 1 - 2 part
          score = PowerOfTwo(MulAdd(by.cap_twice, -part, by.cap) - base[c % 2]);
        } else {
          score = PowerOfTwo(MulAdd(score, by.scale, -base[c % 2]));
        }
      }
      Narrow(j);
      if constexpr (Tile::kIsCapped) {
#pragma unroll
        for (int c = 0; c < 4; ++c) scores[4 * j + c] *= bends[c];
      }
    }
  }
  __device__ void Narrow(int j) {
#pragma unroll
    for (int half = 0; half < 2; ++half)
      weights[2 * j + half] =
          NarrowTwo(T(), scores[4 * j + 2 * half], scores[4 * j + 2 * half + 1]);
  }
  // s: the lane's first query; first, end: the queries that see keys row and row + 8.
  __device__ void Hide(int s, int2 first, int2 end) {
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int query = s + i / 4 * 8 + i % 2;
      const bool is_seen =
          i / 2 % 2 ? query >= first.y && query < end.y : query >= first.x && query < end.x;
      if (is_seen) continue;
      scores[i] = 0;
      weights[i / 2] &= i % 2 ? 0xffffu : 0xffff0000u;
    }
  }
  // A weight times cap'. As it was rounded for grad_v, where registers hold it only so.
  __device__ float Share(int i) const {
    if constexpr (Tile::kIsCapped) return scores[i];
    return i % 2 ? WidenHigh(T(), weights[i / 2]) : WidenLow(T(), weights[i / 2]);
  }
  // Gradients of weights to those of products. kCut: a weight of 0 has none, whatever the values
  // hold that it hides.
  template <bool kCut>
  __device__ void Slope(uint32_t deltas) {
#pragma unroll
    for (int j = 0; j < Tile::kQueries / 8; ++j) {
      float delta[2];
      LoadTwo(delta, deltas + 32 * j);
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        float& grad = grads[4 * j + c];
        const float share = Share(4 * j + c), slope = share * (grad - delta[c % 2]);
        grad = kCut && share == 0 ? 0 : slope;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half)
        slopes[2 * j + half] = NarrowTwo(T(), grads[4 * j + 2 * half], grads[4 * j + 2 * half + 1]);
    }
  }
  // Rows of keys of 64 queries.
  __device__ void StoreSlopes(uint32_t to, int group, int thread) const {
    const uint32_t row = 64 * group + thread / 32 * 16 + thread % 16, high = thread % 32 / 16;
#pragma unroll
    for (int i = 0; i < kPairs / 8; ++i)
      StoreMatrices(to + Swizzled(row, 2 * i + high), slopes[4 * i], slopes[4 * i + 1],
                    slopes[4 * i + 2], slopes[4 * i + 3]);
  }
  __device__ void StoreQueries(uint32_t to, int group, int thread) const {
    const uint32_t at = to + group * (Tile::kD / 16) * 2048 + thread * 16;
#pragma unroll
    for (int i = 0; i < Tile::kOwn / 8; ++i) StoreFour(at + 2048 * i, q + 4 * i);
#pragma unroll
    for (int i = 0; i < Tile::kOwnMore / 8; ++i)
      StoreFour(at + 2048 * (Tile::kOwn / 8 + i), q_more + 4 * i);
  }
  __device__ void PinQueries() {
    Pin(q);
    if constexpr (Tile::kMore > 0) Pin(q_more);
  }
  __device__ void PinKeys() {
    Pin(k);
    if constexpr (Tile::kMore > 0) Pin(more);
  }
  // grad_v and grad_k begin with 0, or with what other heads of the group have left.
  __device__ void Begin(const float* from) {
    Fill(v, from), Fill(k, from + Tile::kKeys * Tile::kE);
    if constexpr (Tile::kMore > 0) Fill(more, from + Tile::kKeys * (Tile::kE + Tile::kWide));
  }
  __device__ void Clear() {
#pragma unroll
    for (float& sum : v) sum = 0;
#pragma unroll
    for (float& sum : k) sum = 0;
#pragma unroll
    for (float& sum : more) sum = 0;
  }
  __device__ void Leave(float* to) const {
    Keep(v, to), Keep(k, to + Tile::kKeys * Tile::kE);
    if constexpr (Tile::kMore > 0) Keep(more, to + Tile::kKeys * (Tile::kE + Tile::kWide));
  }
  __device__ void WriteKeys(const GradientView& p, const GradientPlace& place, int row) const {
    const auto scale = static_cast<float>(p.a.scale);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int t = place.tile * Tile::kKeys + row + 8 * half;
      const bool is_there = t < place.at.T;
      T *to_k = nullptr, *to_v = nullptr;
      if (p.grad_k && is_there)
        to_k = static_cast<T*>(p.grad_k) + p.grad_k_steps.At(place.b, place.h, place.at.k + t);
      if (p.grad_v && is_there)
        to_v = static_cast<T*>(p.grad_v) + p.grad_v_steps.At(place.b, place.h, place.at.k + t);
      WriteRow(v, to_v, half, 1, p.a.E);
      WriteRow(k, to_k, half, scale, p.a.D);
      if constexpr (Tile::kMore > 0)
        WriteRow(more, to_k ? to_k + Tile::kWide : nullptr, half, scale, p.a.D - Tile::kWide);
    }
  }

 private:
  __device__ static void LoadTwo(float (&two)[2], uint32_t from) {
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(two[0]), "=f"(two[1]) : "r"(from));
  }
  // A thread's sums, four of the 256 threads side by side.
  template <int kCount>
  __device__ static void Fill(float (&sums)[kCount], const float* from) {
    const auto* at = reinterpret_cast<const float4*>(from) + threadIdx.x - 128;
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i) {
      const float4 four = __ldcg(at + 256 * i);
      sums[4 * i] = four.x, sums[4 * i + 1] = four.y;
      sums[4 * i + 2] = four.z, sums[4 * i + 3] = four.w;
    }
  }
  template <int kCount>
  __device__ static void Keep(const float (&sums)[kCount], float* to) {
    auto* at = reinterpret_cast<float4*>(to) + threadIdx.x - 128;
#pragma unroll
    for (int i = 0; i < kCount / 4; ++i)
      __stcg(at + 256 * i,
             make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
  }
  __device__ static void StoreFour(uint32_t to, const float* four) {
    StoreShared(to, {__float_as_uint(four[0]), __float_as_uint(four[1]), __float_as_uint(four[2]),
                     __float_as_uint(four[3])});
  }
};

// Whether one of 256 threads says so.
__device__ inline bool MeetForAny(int barrier, bool mine) {
  int is_any;
  asm volatile(
      "{.reg .pred p, q;\n\tsetp.ne.b32 p, %1, 0;\n\tbarrier.cta.red.or.pred q, %2, 256, p;\n\t"
      "selp.b32 %0, 1, 0, q;}"
      : "=r"(is_any)
      : "r"(int{mine}), "r"(barrier)
      : "memory");
  return is_any != 0;
}

// Puts zeroes for what is not finite into a tile of keys, by 256 threads, and says whether there
// was any, and in which rows; the products that make scores would show it where it is hidden
// otherwise.
template <typename T, typename Tile>
__device__ bool CleanKeys(uint32_t keys, int thread, uint8_t* is_bad) {
  constexpr int kPieces = static_cast<int>(Tile::kKeyBytes / 16);
  // An exponent of ones, and one more, is the sign's bit.
  constexpr bool kIsBrain = kOperandOf<T> == Operand::kBFloat16;
  constexpr uint32_t kExponents = kIsBrain ? 0x7f807f80 : 0x7c007c00;
  constexpr uint32_t kOnes = kIsBrain ? 0x00800080 : 0x04000400;
  uint32_t any = 0;
#pragma unroll 4
  for (int at = thread; at < kPieces; at += 256) {
    uint32_t words[4];
    LoadShared(words, keys + 16 * at);
#pragma unroll
    for (const uint32_t word : words) any |= (word & kExponents) + kOnes;
  }
  if (!MeetForAny(1, any & 0x80008000)) return false;
  if (thread < Tile::kKeys) is_bad[thread] = 0;
  MeetAt(1, 256);
#pragma unroll 1
  for (int at = thread; at < kPieces; at += 256) {
    uint32_t words[4];
    LoadShared(words, keys + 16 * at);
#pragma unroll
    for (uint32_t& word : words) {
      const bool low = IsBad<T>(word), high = IsBad<T>(word >> 16);
      if (low) word &= 0xffff0000u;
      if (high) word &= 0xffffu;
      if (low || high) is_bad[at / 8 % Tile::kKeys] = 1;
    }
    StoreShared(keys + 16 * at, words);
  }
  FenceForTma();
  MeetAt(1, 256);
  return true;
}

// Puts zeroes into the rows of a tile of queries behind those of a sequence, by 256 threads.
template <typename Tile>
__device__ void ClearQueries(uint32_t tile, int panels, int rows, int thread) {
  for (int at = thread; at < panels * Tile::kQueries * 8; at += 256)
    if (at / 8 % Tile::kQueries >= rows) StoreShared(tile + 16 * at, {0, 0, 0, 0});
}

}  // namespace
}  // namespace anyop::cuda
