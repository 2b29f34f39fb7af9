// SPDX-License-Identifier: Apache-2.0
// Latent attention on Hopper to rows of 656 bytes: 512 numbers of 8 bits, a float32 scale for each
// 128 of them, 64 of bfloat16. They are widened in registers on their way to shared memory.
#pragma once

#include "mla_sm90_load.h"

namespace anyop::cuda {
namespace {

// 1, 2 or 4 words that lie side by side in memory which nobody writes.
template <int kCount>
__device__ void LoadWords(uint32_t (&to)[kCount], const uint8_t* from) {
#if ANYOP_PTX
  if constexpr (kCount == 1)
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(to[0]) : "l"(from));
  else if constexpr (kCount == 2)
    asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(from));
  else
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(from));
#else
  for (int i = 0; i < kCount; ++i) to[i] = reinterpret_cast<const uint32_t*>(from)[i];
#endif
}

// What a warp has of 8 rows, as kLoader of two warpgroups has 32 of a block's 64: eight lanes have
// a piece each of rows 4 k + i, i their number among the eights. A group is two panels of 64
// numbers, the fifth those of bfloat16; two are on their way.
template <typename T, int kLoader>
struct LatentBytes {
  static constexpr int kScales = 512, kWide = 528;  // where they lie
  static constexpr uint32_t kNone = ~0u;
  int next_entry;      // of row lane % 8 of the block that comes next
  uint32_t places[2];  // of the lane's pieces of its rows, in eights of bytes
  uint32_t ahead[2][2][4];
  float scale;  // of row 4 (lane % 8 / 4) + i that of group lane % 4

  __device__ static uint32_t Lane() { return ComputedHere(threadIdx.x) % 32; }
  // Of the warp's, in the block; the others follow in fours, 16 apart.
  __device__ static uint32_t FirstRow() {
    return 32 * kLoader + ComputedHere(threadIdx.x) % 128 / 32 * 4;
  }
  __device__ void LookUp(const PagedView& p, const LatentItem& item, int block) {
    const int row = Lane() % 8,
              key = 64 * (item.first + block) + FirstRow() + row / 4 * 16 + row % 4;
    next_entry = key < item.end ? p.indices[int64_t{item.at.b} * p.M + key] : -1;
  }
  // Goes on to that block; whether all entries are -1 or right.
  __device__ bool Step(const PagedView& p) {
    const uint32_t step = static_cast<uint32_t>(p.k_steps.row) / 8;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const int row = __shfl_sync(~0u, next_entry, 4 * k + Lane() / 8);
      places[k] = IsRight(p, row) ? row * step + Lane() % 8 : kNone;
    }
    return next_entry == -1 || IsRight(p, next_entry);
  }
  __device__ static bool IsRight(const PagedView& p, int entry) {
    return static_cast<uint32_t>(entry) < static_cast<uint32_t>(p.P);
  }
  // Bit i: whether row 4 k + i is there.
  __device__ uint32_t There(int k) const {
    const uint32_t lanes = __ballot_sync(~0u, places[k] != kNone);
    return (lanes & 1) | (lanes >> 7 & 2) | (lanes >> 14 & 4) | (lanes >> 21 & 8);
  }
  __device__ static const uint8_t* At(const PagedView& p, uint32_t place) {
    return static_cast<const uint8_t*>(p.k) + uint64_t{place} * 8;
  }
  __device__ void LoadScales(const PagedView& p) {
    const uint32_t lane = Lane(), place = lane % 8 < 4 ? places[0] : places[1];
    uint32_t bits[1] = {};
    if (place != kNone) LoadWords(bits, At(p, place - lane % 8) + kScales + lane % 4 * 4);
    scale = __uint_as_float(bits[0]);
  }
  template <int kGroup>
  __device__ void Load(const PagedView& p, int slot, int k) {
    uint32_t (&to)[4] = ahead[slot][k];
    to[0] = to[1] = to[2] = to[3] = 0;
    if (places[k] == kNone) return;
    if (kGroup < 4) {
      const uint8_t* from = At(p, places[k]) + 128 * kGroup;
      LoadWords(reinterpret_cast<uint32_t (&)[2]>(to[0]), from);
      LoadWords(reinterpret_cast<uint32_t (&)[2]>(to[2]), from + 64);
    } else {
      LoadWords(to, At(p, places[k] + Lane() % 8) + kWide);
    }
  }
  // Two 8-bit floats times the scale.
  __device__ static uint32_t Widen(uint32_t two, float scale) {
    const uint32_t wide = WidenTwo<Operand::kE4M3>(two & 0xffff);
    return NarrowTwo(T(), WidenLow(__half(), wide) * scale, WidenHigh(__half(), wide) * scale);
  }
  // A row's piece of each of the group's panels; to: of the first of both.
  template <int kGroup>
  __device__ void Store(uint32_t to, int slot, int k) const {
    const uint32_t (&words)[4] = ahead[slot][k];
    if (kGroup == 4) {
      uint32_t wide[4];
#pragma unroll
      for (int w = 0; w < 4; ++w)
        wide[w] = std::is_same_v<T, __nv_bfloat16>
                      ? words[w]
                      : NarrowTwo(T(), WidenLow(__nv_bfloat16(), words[w]),
                                  WidenHigh(__nv_bfloat16(), words[w]));
      StoreShared(to, wide);
      return;
    }
    const float mine = __shfl_sync(~0u, scale, Lane() / 8 * 8 + k * 4 + (kGroup < 4 ? kGroup : 0));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t wide[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) wide[w] = Widen(words[2 * half + w / 2] >> 16 * (w % 2), mine);
      StoreShared(to + half * 8192, wide);
      __syncwarp();  // or all is widened at once, for which there are no registers
    }
  }
};

// A block of rows to buffer kBuffer, whose first two groups are on their way, and then those of the
// block that next() finds.
template <typename T, typename Tile, int kLoader, int kBuffer, typename Next>
__device__ void WidenLatentRows(const PagedView& p, LatentState& state, uint32_t buffers,
                                LatentBytes<T, kLoader>& bytes, uint32_t parity, const Next& next) {
  static_assert(Tile::kGroups == 5 && Tile::kPanel == 8192, "");
  const int lane = threadIdx.x % 32;
  // The order in which panels are wanted, and given back.
  constexpr auto kGroupAt = [](int i) { return Tile::PanelOf(kBuffer, 2 * i) / 2; };
  const auto step = [&](auto index) {
    constexpr int i = decltype(index)::value, kGroup = kGroupAt(i), kSlot = (i + kBuffer) % 2;
    constexpr int kNext = i < 3 ? kGroupAt(i + 2) : Tile::PanelOf(1 - kBuffer, 2 * (i - 3)) / 2;
    if (i < 4) WaitAt(SharedAddress(&state.empty[kBuffer][i < 4 ? kGroup : 0]), parity ^ 1);
    const uint32_t thread = ComputedHere(threadIdx.x) % 128;
    const uint32_t to = buffers + kBuffer * Tile::kBuffer + kGroup * 2 * Tile::kPanel +
                        Swizzled(32 * kLoader + thread / 8, thread % 8);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      bytes.template Store<kGroup>(to + k * 2048, kSlot, k);
      __syncwarp();
      if (i == 3 && k == 1) bytes.LoadScales(p);
      bytes.template Load<kNext>(p, kSlot, k);
    }
    FenceForTma();
    Arrive(SharedAddress(&state.full[kBuffer][kGroup]));
  };
  step(std::integral_constant<int, 0>());
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    const uint32_t there = bytes.There(k);
    if (lane == 0) state.there[kBuffer][(bytes.FirstRow() + 16 * k) / 4] = there;
  }
  __syncwarp();
  if (lane == 0) Arrive(SharedAddress(&state.full[kBuffer][0]));
  step(std::integral_constant<int, 1>());
  step(std::integral_constant<int, 2>());
  next();
  step(std::integral_constant<int, 3>());
  step(std::integral_constant<int, 4>());
}

// By kLoader of two warpgroups, half of each block; queries by the first.
template <typename T, typename Tile, int kLoader>
__device__ void LoadLatentBytes(const PagedView& p, LatentState& state, uint32_t queries,
                                uint32_t buffers) {
  uint32_t pair = 0;
  ForLatentItems<kLoader == 0>(p, state, [&](LatentItem& item, int n) {
    LatentBytes<T, kLoader> bytes;
    bytes.LookUp(p, item, 0);
    if (kLoader == 0) {
      WaitAt(SharedAddress(&state.q_empty), (n & 1) ^ 1);
      LoadLatentQueries<T, Tile, 128>(p, item, queries, ComputedHere(threadIdx.x));
      ArriveWhenCopied(SharedAddress(&state.q_full));
    }
    const auto next = [&](int block) {
      if (!bytes.Step(p)) item.at.is_wrong = true;
      bytes.LookUp(p, item, block);
    };
    next(1);
    bytes.LoadScales(p);
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      bytes.template Load<0>(p, 0, k);
      __syncwarp();
      bytes.template Load<1>(p, 1, k);
    }
#pragma unroll 1
    for (int left = item.pairs; left > 0; --left, ++pair) {
      const auto after = [&](int block) { next(2 * (item.pairs - left) + block); };
      WidenLatentRows<T, Tile, kLoader, 0>(p, state, buffers, bytes, pair & 1, [&] { after(2); });
      WidenLatentRows<T, Tile, kLoader, 1>(p, state, buffers, bytes, pair & 1, [&] { after(3); });
    }
  });
}

}  // namespace
}  // namespace anyop::cuda
