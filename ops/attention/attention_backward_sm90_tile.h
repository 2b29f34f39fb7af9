// SPDX-License-Identifier: Apache-2.0
// Gradients of attention on Hopper: the sizes of a tile, in which order tiles of keys come, and in
// which they are added to a tile of queries.
#pragma once

#include "attention_backward_view.h"
#include "attention_sm90.h"

namespace anyop::cuda {
namespace {

template <int kKeyFeatures, int kValueFeatures, bool kCapped>
struct HopperGradientTile {
  static constexpr int kD = kKeyFeatures, kE = kValueFeatures;
  static constexpr bool kIsCapped = kCapped;
  static constexpr int kQueries = 64, kKeys = 128, kThreads = 384;
  // Columns of grad_k by one wgmma, and what is left; of grad_q in one warpgroup, likewise.
  static constexpr int kWide = kD < 128 ? kD : 128, kMore = kD - kWide;
  static constexpr int kOwn = kWide / 2, kOwnMore = kMore / 2;
  // The scores of the next queries are multiplied before grad_q of these is written; else
  // registers would not do.
  static constexpr bool kIsAhead = kD <= 128 && !kCapped;
  static constexpr bool kIsWide = kD > 128;  // waits for grad_k before grad_q is begun
  static constexpr uint32_t kQueryPanel = kQueries * 128, kKeyPanel = kKeys * 128;
  static constexpr uint32_t kQueryBytes = kD / 64 * kQueryPanel, kGradBytes = kE / 64 * kQueryPanel;
  static constexpr uint32_t kKeyBytes = kD / 64 * kKeyPanel, kValueBytes = kE / 64 * kKeyPanel;
  static constexpr uint32_t kSlopeBytes = kKeyPanel, kSumBytes = kQueries * kD * 4;
  static constexpr uint32_t kNumberBytes = kQueries * 4;  // of bases, or of deltas
  static constexpr int kStages = 2;                       // of queries and of gradients of results
  static constexpr int kBuffers = kD <= 128 ? 2 : 1;      // of slopes, and of sums for grad_q
  static constexpr uint32_t kQueriesAt = kKeyBytes + kValueBytes;
  static constexpr uint32_t kGradsAt = kQueriesAt + kStages * kQueryBytes;
  static constexpr uint32_t kSlopesAt = kGradsAt + kStages * kGradBytes;
  static constexpr uint32_t kSumsAt = kSlopesAt + kBuffers * kSlopeBytes;
  static constexpr uint32_t kBasesAt = kSumsAt + kBuffers * kSumBytes;
  static constexpr uint32_t kDeltasAt = kBasesAt + kStages * kNumberBytes;
  static constexpr uint32_t kSharedBytes = kDeltasAt + kStages * kNumberBytes;
};

// Memory of a call, by tiles of queries of all heads, and of keys of all groups.
struct HopperGradientMemory {
  float *bases, *deltas;  // 64 of each tile: lse as a multiple of ln 2, infinite for rows that are
                          // not there or see nothing; delta
  float* sums;            // grad_q, as registers hold it: AddFloats adds it up
  float* parts;           // grad_v and grad_k of some heads of a group, as registers hold them
  int32_t *turns, *done;  // how many tiles of keys a tile has from; how many parts of heads
  int32_t* next;          // the next item
};

// Items are drawn in this order, and each waits only for those before it. An item is a tile of keys
// and a part of the heads of its group. Of `section` groups at a time, which keep what they read
// and add up in the second cache, come the last keys first: under a causal bound they begin with
// other queries than the one before each, so that tiles that start together do not wait. Of the
// last `rest` groups all tiles come together, but for the first `ahead` those with most queries
// first, so that all end together.
struct HopperGradientOrder {
  int groups, tiles;                // groups of all sequences; tiles of keys of each
  int parts, heads;                 // of a group; heads of a part
  int section, early, rest, ahead;  // early and rest: parts of groups
  int items;
};

struct HopperGradientItem {
  GradientPlace place;
  int number;          // of the tile of keys
  int q_tiles;         // the first tile of queries of the sequence and first head, of memory
  int first, each;     // of the tiles of queries that see a key: of a head
  int count;           // of all heads of this part; -1: there are no more items
  int h, part, ahead;  // the first head

  // Not all queries of tile i see all keys.
  template <typename Tile>
  __device__ bool IsCut(int i) const {
    const int top = place.tile * Tile::kKeys, s = i * Tile::kQueries;
    return top + Tile::kKeys > place.at.T || s < place.at.FirstQuery(top + Tile::kKeys - 1) ||
           s + Tile::kQueries > place.at.EndQuery(top);
  }
  // How many tiles of keys are added to tile i of queries before this one.
  template <typename Tile>
  __device__ int TurnAt(int i) const {
    const int s = i * Tile::kQueries, last = min(s + Tile::kQueries, place.at.S) - 1;
    const int low = place.at.First(s) / Tile::kKeys, high = (place.at.End(last) - 1) / Tile::kKeys;
    return place.tile < ahead ? min(high, ahead - 1) - place.tile : place.tile - low;
  }
};

// Sets what follows from the number of the draw alone.
__device__ inline void PlaceDraw(const HopperGradientOrder& order, int draw,
                                 HopperGradientItem* item) {
  const int early = order.early, tiles = order.tiles;
  const bool is_early = draw < early * tiles;
  const int first = is_early ? draw / (order.section * tiles) * order.section : early;
  const int count = is_early ? order.section : order.rest;
  const int in = draw - first * tiles, turn = in / count, group = first + in % count;
  item->ahead = is_early ? tiles : min(order.ahead, tiles);
  const int tile = turn < item->ahead ? item->ahead - 1 - turn : turn;
  item->part = group / order.groups;
  item->number = group % order.groups * tiles + tile;
}

// False where there are no keys.
template <typename Tile>
__device__ bool FindGradientItem(const GradientView& p, const HopperGradientOrder& order, int draw,
                                 HopperGradientItem* item) {
  PlaceDraw(order, draw, item);
  const bool is_packed = p.a.cu_q;
  const bool is_there = is_packed ? PlaceKeys<true>(p, item->number, Tile::kKeys, &item->place)
                                  : PlaceKeys<false>(p, item->number, Tile::kKeys, &item->place);
  if (!is_there) return false;
  const GradientPlace& place = item->place;
  const GradientRange& at = place.at;
  const int top = place.tile * Tile::kKeys, last = min(top + Tile::kKeys, at.T) - 1;
  const int first = at.FirstQuery(top), end = at.EndQuery(last);
  item->first = first / Tile::kQueries;
  item->each =
      end > first ? (end + Tile::kQueries - 1) / Tile::kQueries - first / Tile::kQueries : 0;
  item->count = item->each * order.heads;
  item->h = place.h * p.a.group + item->part * order.heads;
  item->q_tiles = (static_cast<int>(place.b) * p.a.H + item->h) * p.a.tiles;
  if (is_packed) {
    const int tile = item->number % p.key_tiles;
    const int sequence = tile - at.k / Tile::kKeys - place.tile;
    item->q_tiles += at.q / Tile::kQueries + sequence;
  }
  return true;
}

}  // namespace
}  // namespace anyop::cuda
