// SPDX-License-Identifier: Apache-2.0
// Attention on Hopper: how queries, keys and values come to shared memory by TMA, from rows and
// from the pages of a cache.
#pragma once

#include "attention_sm90_tile.h"

namespace anyop::cuda {
namespace {

template <int kQueries, int kStages>
struct HopperBarriers {
  uint64_t q_full[kQueries], q_empty[kQueries];
  uint64_t k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
};
template <typename Tile>
using BarriersOf = HopperBarriers<Tile::kQueries, Tile::kStages>;

struct HopperMaps {
  const CUtensorMap *q, *k, *v;
};

// Where a lane's box of a tile of keys comes from. A page is looked up one tile before.
template <typename Tile>
struct LaneBox {
  int page, place;  // of the box; page behind the last: zeroes

  __device__ LaneBox(const AttentionView& p, const HopperItem& item, int lane)
      : t_((item.first + item.count - 1) * Tile::kKeys + lane * p.box),
        first_(item.First(item.top)),
        end_(lane * p.box < Tile::kKeys ? item.End(item.Last(Tile::kRows)) : 0),
        at_(p.table + int64_t{item.sequence} * p.columns + t_ / p.places),
        next_place_(t_ % p.places) {
    LookUp(p);
  }
  // Comes to the next tile, which is the one before in memory; false where its page is not there.
  __device__ bool Next(const AttentionView& p) {
    const bool is_needed = IsNeeded(p), is_there = is_needed && IsPage(p, entry_);
    page = is_there ? entry_ : p.pages, place = next_place_;
    t_ -= Tile::kKeys, at_ -= p.column_step, next_place_ -= p.place_step;
    if (next_place_ < 0) next_place_ += p.places, --at_;
    LookUp(p);
    return is_there || !is_needed;
  }

 private:
  __device__ bool IsNeeded(const AttentionView& p) const {
    return t_ < end_ && t_ + p.box > first_;
  }
  __device__ void LookUp(const AttentionView& p) {
    if (IsNeeded(p)) entry_ = *at_;
  }

  int t_, first_, end_;  // t_: the first key of its next box; first_, end_: keys that are needed
  const int32_t* at_;
  int next_place_, entry_;
};

// Of one lane of a warp.
__device__ inline bool IsElected() {
#if ANYOP_PTX
  uint32_t is_elected;
  asm volatile("{.reg .pred p;\n\telect.sync _|p, 0xffffffff;\n\tselp.u32 %0, 1, 0, p;}"
               : "=r"(is_elected));
  return is_elected;
#else
  return threadIdx.x % 32 == 0;
#endif
}
// A tile of keys or values, or a box of it.
template <int kFeatures, typename Tile>
__device__ void LoadTile(const CUtensorMap* map, uint32_t to, uint32_t barrier, int row, int g,
                         int b) {
#pragma unroll
  for (int i = 0; i < kFeatures / 64; ++i)
    LoadBox(to + i * Tile::kKeyPanel, map, barrier, 64 * i, row, g, b);
}
template <typename Tile>
__device__ void LoadQueries(const CUtensorMap* map, uint32_t to, uint32_t barrier,
                            const HopperItem& item) {
  ArriveForBytes(barrier, Tile::kQueryBytes);
#pragma unroll
  for (int i = 0; i < Tile::kD / 64; ++i)
    LoadBox(to + i * Tile::kQueryPanel, map, barrier, 64 * i, item.q, item.h, item.b);
}

// The next item of this block, one with h < 0 behind the last.
template <typename Tile, bool kPaged>
__device__ HopperItem NextItem(const AttentionView& p, int tiles, int ahead, int* round) {
  const int items = static_cast<int>(p.items) / p.tiles * tiles;
  HopperItem item = {};
  item.h = -1;
  for (;;) {
    const int number = ItemOfRound((*round)++, items);
    if (number == -1 || (number >= 0 && FindItem<Tile, kPaged>(p, tiles, number, ahead, &item)))
      return item;
  }
}

// All tiles of this block, by one thread.
template <typename Tile>
__device__ void LoadRows(const AttentionView& p, const HopperMaps& maps, uint32_t queries,
                         BarriersOf<Tile>& barriers, HopperItem* told, int ahead) {
  const uint32_t keys = queries + Tile::kQueries * Tile::kQueryBytes;
  const uint32_t values = keys + Tile::kStages * Tile::kKeyBytes;
  const uint32_t q_full = SharedAddress(barriers.q_full);
  const uint32_t q_empty = SharedAddress(barriers.q_empty);
  const uint32_t k_full = SharedAddress(barriers.k_full), v_full = SharedAddress(barriers.v_full);
  const uint32_t k_empty = SharedAddress(barriers.k_empty);
  const uint32_t v_empty = SharedAddress(barriers.v_empty);
  RingPlace<Tile::kStages> at;  // of keys and values of one tile
  RingPlace<Tile::kQueries> q_at;
  RingPlace<Tile::kQueries + 1> told_at;  // so that what was told stays until the tile is written
  for (int round = 0;;) {
    const HopperItem item = NextItem<Tile, false>(p, p.tiles, ahead, &round);
    const auto load_keys = [&](int j) {
      const uint32_t barrier = k_full + 8 * at.stage;
      WaitAt(k_empty + 8 * at.stage, at.parity ^ 1);
      ArriveForBytes(barrier, Tile::kKeyBytes);
      LoadTile<Tile::kD, Tile>(maps.k, keys + at.stage * Tile::kKeyBytes, barrier,
                               item.k + j * Tile::kKeys, item.g, item.b);
    };
    int j = item.first + item.count - 1;
    if (item.count > 0) load_keys(j);
    const uint32_t q_barrier = q_full + 8 * q_at.stage;
    WaitAt(q_empty + 8 * q_at.stage, q_at.parity ^ 1);
    told[told_at.stage] = item;
    if (item.h < 0) {
      Arrive(q_barrier);
      break;
    }
    LoadQueries<Tile>(maps.q, queries + q_at.stage * Tile::kQueryBytes, q_barrier, item);
    q_at.Next(), told_at.Next();
    for (; j >= item.first; at.Next()) {
      const uint32_t barrier = v_full + 8 * at.stage;
      WaitAt(v_empty + 8 * at.stage, at.parity ^ 1);
      ArriveForBytes(barrier, Tile::kValueBytes);
      LoadTile<Tile::kE, Tile>(maps.v, values + at.stage * Tile::kValueBytes, barrier,
                               item.k + j * Tile::kKeys, item.g, item.b);
      if (--j < item.first) continue;
      const RingPlace<Tile::kStages> here = at;
      at.Next();
      load_keys(j);
      at = here;
    }
  }
}

// Keys or values of all tiles of this block from pages, by a warp. That of the keys also loads
// queries and tells.
template <typename Tile, bool kValues>
__device__ void LoadPages(const AttentionView& p, const HopperMaps& maps, uint32_t queries,
                          BarriersOf<Tile>& barriers, HopperItem* told, int ahead) {
  constexpr int kFeatures = kValues ? Tile::kE : Tile::kD;
  constexpr uint32_t kBytes = kValues ? Tile::kValueBytes : Tile::kKeyBytes;
  const uint32_t ring = queries + Tile::kQueries * Tile::kQueryBytes +
                        (kValues ? Tile::kStages * Tile::kKeyBytes : 0);
  const uint32_t full = SharedAddress(kValues ? barriers.v_full : barriers.k_full);
  const uint32_t empty = SharedAddress(kValues ? barriers.v_empty : barriers.k_empty);
  const uint32_t q_full = SharedAddress(barriers.q_full);
  const uint32_t q_empty = SharedAddress(barriers.q_empty);
  const int lane = threadIdx.x % 32, tiles = p.cu_q ? CountTiles(p, Tile::kRows) : p.tiles;
  RingPlace<Tile::kStages> at;
  RingPlace<Tile::kQueries> q_at;
  RingPlace<Tile::kQueries + 1> told_at;
  for (int round = 0;;) {
    HopperItem item = NextItem<Tile, true>(p, tiles, ahead, &round);
    LaneBox<Tile> box(p, item, lane);
    bool is_right = true;
    const auto load = [&] {
      WaitAt(empty + 8 * at.stage, at.parity ^ 1);
      const uint32_t to = ring + at.stage * kBytes, barrier = full + 8 * at.stage;
      __syncwarp();
      if (lane == 0) ArriveForBytes(barrier, kBytes);
      __syncwarp();
      // By one lane for all: each for itself would wait for those before it.
      const bool is_elected = IsElected();
#pragma unroll 1
      for (int i = 0, row = 0; row < Tile::kKeys; ++i, row += p.box) {
        const int page = __shfl_sync(~0u, box.page, i), place = __shfl_sync(~0u, box.place, i);
        if (is_elected)
          LoadTile<kFeatures, Tile>(kValues ? maps.v : maps.k, to + row * 128, barrier, place,
                                    item.g, page);
      }
      at.Next();
    };
    int left = item.count;
    if (left > 0) is_right = box.Next(p), load(), --left;
    if (!kValues) {
      if (!__all_sync(~0u, is_right)) item.is_wrong = true;
      const uint32_t q_barrier = q_full + 8 * q_at.stage;
      WaitAt(q_empty + 8 * q_at.stage, q_at.parity ^ 1);
      __syncwarp();
      HopperItem& mine = told[told_at.stage];
      if (lane == 0) {
        mine = item;
        if (item.h < 0) {
          Arrive(q_barrier);
        } else {
          LoadQueries<Tile>(maps.q, queries + q_at.stage * Tile::kQueryBytes, q_barrier, item);
        }
      }
      __syncwarp();
      if (item.h < 0) break;
      q_at.Next(), told_at.Next();
      for (; left > 0; --left) {
        if (!box.Next(p)) mine.is_wrong = true;
        load();
      }
    } else {
      if (item.h < 0) break;
      for (; left > 0; --left) box.Next(p), load();
    }
  }
}

}  // namespace
}  // namespace anyop::cuda
