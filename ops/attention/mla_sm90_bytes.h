// SPDX-License-Identifier: Apache-2.0
// Latent attention on Hopper to rows of 656 bytes: 512 numbers of 8 bits, a float32 scale for each
// 128 of them, 64 of bfloat16. They are widened in registers on their way to shared memory.
#pragma once

#include "mla_sm90_load.h"

namespace anyop::cuda {
namespace {

// What a warp has of 16 rows: eight lanes have a piece each of rows 4 k + i, i their number among
// the eights. A group is two panels of 64 numbers, the fifth those of bfloat16; two are on their
// way.
template <typename T>
struct LatentBytes {
  static constexpr int kScales = 512, kWide = 528;  // where they lie
  int entry, next_entry;  // of row lane % 16; of the block that comes next
  uint32_t ahead[2][4][4];
  float scales[2];  // of row 4 (2 j + lane % 8 / 4) + i that of group lane % 4

  __device__ static uint32_t Lane() { return ComputedHere(threadIdx.x) % 32; }
  // t: the block's first key.
  __device__ void LookUp(const PagedView& p, const LatentItem& item, int t) {
    const int row = Lane() % 16, key = t + row / 4 * 16 + threadIdx.x / 32 * 4 + row % 4;
    next_entry = key < item.end ? p.indices[int64_t{item.at.b} * p.M + key] : -1;
  }
  // Goes on to that block; whether all entries are -1 or right.
  __device__ bool Step(const PagedView& p) {
    entry = next_entry;
    return entry == -1 || IsRight(p, entry);
  }
  __device__ static bool IsRight(const PagedView& p, int entry) {
    return static_cast<uint32_t>(entry) < static_cast<uint32_t>(p.P);
  }
  // Bit i: whether row 4 k + i is there.
  __device__ uint32_t There(const PagedView& p, int k) const {
    return __ballot_sync(~0u, IsRight(p, entry)) >> 4 * k & 15;
  }
  // nullptr: it is not there.
  __device__ const uint8_t* Row(const PagedView& p, int k) const {
    const int row = __shfl_sync(~0u, entry, 4 * k + Lane() / 8);
    if (!IsRight(p, row)) return nullptr;
    return static_cast<const uint8_t*>(p.k) + int64_t{row} * static_cast<int>(p.k_steps.row);
  }
  // Of rows 2 j and 2 j + 1 of the lane's.
  __device__ void LoadScales(const PagedView& p, int j) {
    const uint8_t* rows[2] = {Row(p, 2 * j), Row(p, 2 * j + 1)};
    const uint8_t* from = Lane() % 8 < 4 ? rows[0] : rows[1];
    scales[j] = 0;
    if (from)
      asm volatile("ld.global.nc.f32 %0, [%1];"
                   : "=f"(scales[j])
                   : "l"(from + kScales + Lane() % 4 * 4));
  }
  template <int kGroup>
  __device__ void Load(const PagedView& p, int slot, int k) {
    uint32_t (&to)[4] = ahead[slot][k];
    const uint8_t* from = Row(p, k);
    to[0] = to[1] = to[2] = to[3] = 0;
    if (!from) return;
    from += Lane() % 8 * (kGroup < 4 ? 8 : 16);
    if (kGroup < 4) {
      asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];"
                   : "=r"(to[0]), "=r"(to[1])
                   : "l"(from + 128 * kGroup));
      asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];"
                   : "=r"(to[2]), "=r"(to[3])
                   : "l"(from + 128 * kGroup + 64));
    } else {
      asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                   : "l"(from + kWide));
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
    const float scale =
        __shfl_sync(~0u, scales[k / 2], Lane() / 8 * 8 + k % 2 * 4 + (kGroup < 4 ? kGroup : 0));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      uint32_t wide[4];
#pragma unroll
      for (int w = 0; w < 4; ++w) wide[w] = Widen(words[2 * half + w / 2] >> 16 * (w % 2), scale);
      StoreShared(to + half * 8192, wide);
    }
  }
};

// A block of rows to buffer kBuffer, whose first two groups are on their way, and then those of the
// block that next() finds.
template <typename T, typename Tile, int kBuffer, typename Next>
__device__ void WidenLatentRows(const PagedView& p, LatentState& state, uint32_t buffers,
                                LatentBytes<T>& bytes, uint32_t parity, const Next& next) {
  static_assert(Tile::kGroups == 5 && Tile::kPanel == 8192, "");
  const int lane = threadIdx.x % 32;
  // The order in which panels are wanted, and given back.
  constexpr auto kGroupAt = [](int i) { return Tile::PanelOf(kBuffer, 2 * i) / 2; };
  const auto step = [&](auto index) {
    constexpr int i = decltype(index)::value, kGroup = kGroupAt(i), kSlot = (i + kBuffer) % 2;
    constexpr int kNext = i < 3 ? kGroupAt(i + 2) : Tile::PanelOf(1 - kBuffer, 2 * (i - 3)) / 2;
    if (i < 4) WaitAt(SharedAddress(&state.empty[kBuffer][i < 4 ? kGroup : 0]), parity ^ 1);
    const uint32_t thread = ComputedHere(threadIdx.x), to = buffers + kBuffer * Tile::kBuffer +
                                                            kGroup * 2 * Tile::kPanel +
                                                            Swizzled(thread / 8, thread % 8);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      bytes.template Store<kGroup>(to + k * 2048, kSlot, k);
      __syncwarp();  // or the compiler widens rows at once, for which there are no registers
      if (i == 3 && k % 2 == 1) bytes.LoadScales(p, k / 2);
      bytes.template Load<kNext>(p, kSlot, k);
    }
    Arrive(SharedAddress(&state.full[kBuffer][kGroup]));
  };
  step(std::integral_constant<int, 0>());
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const uint32_t there = bytes.There(p, k);
    if (lane == 0) state.there[kBuffer][4 * k + threadIdx.x / 32] = there;
  }
  __syncwarp();
  if (lane == 0) Arrive(SharedAddress(&state.full[kBuffer][0]));
  step(std::integral_constant<int, 1>());
  step(std::integral_constant<int, 2>());
  next();
  step(std::integral_constant<int, 3>());
  step(std::integral_constant<int, 4>());
}

// By a warpgroup.
template <typename T, typename Tile>
__device__ void LoadLatentBytes(const PagedView& p, LatentState& state, uint32_t queries,
                                uint32_t buffers) {
  uint32_t pair = 0;
  ForLatentItems<true>(p, state, [&](LatentItem& item, int n) {
    int t = 64 * item.first;
    LatentBytes<T> bytes;
    bytes.LookUp(p, item, t);
    WaitAt(SharedAddress(&state.q_empty), (n & 1) ^ 1);
    LoadLatentQueries<T, Tile, 128>(p, item, queries, ComputedHere(threadIdx.x));
    ArriveWhenCopied(SharedAddress(&state.q_full));
    const auto next = [&] {
      if (!bytes.Step(p)) item.at.is_wrong = true;
      t += 64;
      bytes.LookUp(p, item, t);
    };
    next();
    bytes.LoadScales(p, 0), bytes.LoadScales(p, 1);
#pragma unroll
    for (int k = 0; k < 4; ++k) bytes.template Load<0>(p, 0, k), bytes.template Load<1>(p, 1, k);
#pragma unroll 1
    for (int left = item.pairs; left > 0; --left, ++pair) {
      WidenLatentRows<T, Tile, 0>(p, state, buffers, bytes, pair & 1, next);
      WidenLatentRows<T, Tile, 1>(p, state, buffers, bytes, pair & 1, next);
    }
  });
}

}  // namespace
}  // namespace anyop::cuda
