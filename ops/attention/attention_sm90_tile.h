// SPDX-License-Identifier: Apache-2.0
// Attention on Hopper: the sizes of a tile, which tiles there are and in which order they come.
#pragma once

#include "anyop/cuda/hopper.h"
#include "attention_cuda.h"

namespace anyop::cuda {
namespace {

template <int kKeyFeatures, int kValueFeatures, bool kCapped>
struct HopperTile {
  static constexpr int kD = kKeyFeatures, kE = kValueFeatures;
  static constexpr int kGroups = kD <= 64 && !kCapped ? 3 : 2;  // warpgroups that multiply
  static constexpr int kRows = 64 * kGroups, kKeys = kD <= 192 ? 128 : 64;
  static constexpr int kThreads = 128 * (kGroups + 1);
  static constexpr bool kKeepsQueries = !kCapped && (kD == 128 || kD == 192);  // in registers
  static constexpr int kLoading = kGroups == 3 ? 32 : 24;  // registers of a thread
  static constexpr int kMultiplying = kGroups == 3 ? 160 : 240;
  static constexpr uint32_t kQueryPanel = kRows * 128, kKeyPanel = kKeys * 128;
  static constexpr uint32_t kQueryBytes = kD / 64 * kQueryPanel, kKeyBytes = kD / 64 * kKeyPanel;
  static constexpr uint32_t kValueBytes = kE / 64 * kKeyPanel;
  static constexpr uint32_t kStageBytes = kKeyBytes + kValueBytes;
  // Of what a multiprocessor has, less what is not dynamic: one tile of queries, or two, of which
  // one is read ahead; stages.
  static constexpr uint32_t kMost = 227 * 1024 - 2048;
  static constexpr int kQueries =
      2 * (kQueryBytes + kStageBytes) <= kMost && !kKeepsQueries ? 2 : 1;
  static constexpr int kFitting = (kMost - kQueries * kQueryBytes) / kStageBytes;
  static constexpr int kStages = kFitting < 4 ? kFitting : 4;
  static constexpr uint32_t kSharedBytes = kQueries * kQueryBytes + kStages * kStageBytes;
};

// What the table says of key t, and whether there is such a page.
__device__ inline int PageOf(const AttentionView& p, int sequence, int t) {
  return p.table[int64_t{sequence} * p.columns + t / p.places];
}
__device__ inline bool IsPage(const AttentionView& p, int page) {
  return static_cast<unsigned>(page) < static_cast<unsigned>(p.pages);
}

// A tile of queries of a head, told by the thread that loads; h < 0: there are no more.
struct HopperItem {
  int h, b, g;
  int q, k;  // rows of the tensors: the tile's first, the sequence's first key
  int top;   // the first query in its sequence
  int S, T, offset;
  int first, count;  // of the tiles of keys that a query sees
  int left, right;
  int whole_first, whole_end;  // of the tiles that all queries see all keys of
  int firsts[3], lasts[3];  // of those that a warpgroup's 64 queries see; none: first - 1 is last
  int sequence;             // of those in pages
  bool is_wrong;            // its length, or a page that a query of the tile sees

  __device__ int First(int s) const { return Within(s + offset - left); }
  __device__ int End(int s) const { return Within(s + offset + right + 1); }
  __device__ int Last(int rows) const { return min(top + rows, S) - 1; }

 private:
  __device__ int Within(int t) const { return t < 0 ? 0 : t > T ? T : t; }
};

// The order of tiles, `tiles` of a head. ahead > 0: of so many heads, whose keys and values the
// second cache holds, those of the last queries, which see most keys, come first; 0: head by head.
__device__ inline Place HopperPlace(const AttentionView& p, int tiles, int item, int ahead) {
  int head = item / tiles, tile = item - head * tiles;
  if (ahead > 0) {
    const int heads = static_cast<int>(p.items / p.tiles), section = item / (ahead * tiles);
    const int in_section = item - section * ahead * tiles;
    const int count = heads - section * ahead < ahead ? heads - section * ahead : ahead;
    tile = tiles - 1 - in_section / count;
    head = section * ahead + in_section % count;
  }
  const int b = head / p.H;
  return {tile, head - b * p.H, b};
}

// Tiles of sequence i of those that StartOf knows.
__device__ inline int TilesOf(const AttentionView& p, int i, int rows) {
  if (i > p.sequences + 1) return 0;
  const int count = StartOf(p.cu_q, p.sequences, p.S, i + 1) - StartOf(p.cu_q, p.sequences, p.S, i);
  return (count + rows - 1) / rows;
}
// By a warp: tiles that have queries, and which is tile number `tile` of them. So blocks have as
// many each, where FindSequence's are partly empty.
__device__ inline int CountTiles(const AttentionView& p, int rows) {
  int count = 0;
  for (int i = threadIdx.x % 32; i <= p.sequences + 1; i += 32) count += TilesOf(p, i, rows);
  return __reduce_add_sync(~0u, count);
}
__device__ inline SequencePlace FindTile(const AttentionView& p, int tile, int rows) {
  const int lane = threadIdx.x % 32;
  int base = 0, count, end;
  unsigned reached;
  for (;; base += 32) {
    end = count = TilesOf(p, base + lane, rows);
#pragma unroll
    for (int by = 1; by < 32; by *= 2) {
      const int before = __shfl_up_sync(~0u, end, by);
      if (lane >= by) end += before;
    }
    reached = __ballot_sync(~0u, end > tile);
    if (reached || base > p.sequences) break;
    tile -= __shfl_sync(~0u, end, 31);
  }
  const int which = __ffs(static_cast<int>(reached)) - 1, i = base + which;
  tile -= __shfl_sync(~0u, end - count, which);
  return {
      StartOf(p.cu_q, p.sequences, p.S, i),  StartOf(p.cu_q, p.sequences, p.S, i + 1), 0, 0, tile,
      i > 0 && i <= p.sequences ? i - 1 : -1};
}

// False where there are no queries. kPaged: of `tiles` that CountTiles has counted.
template <typename Tile, bool kPaged>
__device__ bool FindItem(const AttentionView& p, int tiles, int number, int ahead,
                         HopperItem* item) {
  const Place place = HopperPlace(p, tiles, number, ahead);
  SequencePlace at = {0, p.S, 0, p.T, place.tile, static_cast<int>(place.b)};
  if (p.cu_q)
    at = kPaged ? FindTile(p, place.tile, Tile::kRows) : FindSequence(p, place.tile, Tile::kRows);
  if (!at.HasQueries(Tile::kRows)) return false;
  item->sequence = at.number, item->is_wrong = false;
  if (kPaged) {
    at.keys = at.number < 0 ? 0 : p.lengths[at.number];
    item->is_wrong = at.keys < 0 || at.keys > p.T;
    if (item->is_wrong) at.keys = 0;
  }
  item->h = place.h, item->b = static_cast<int>(place.b), item->g = place.h / p.group;
  item->top = at.tile * Tile::kRows;
  item->q = at.first + item->top, item->k = at.key;
  item->S = at.end - at.first, item->T = at.keys;
  item->offset = p.cu_q || kPaged ? item->T - item->S : p.offset;
  item->left = p.left, item->right = p.right;
  const int first = item->First(item->top) / Tile::kKeys, end = item->End(item->Last(Tile::kRows));
  item->first = first;
  item->count = end > item->First(item->top) ? (end + Tile::kKeys - 1) / Tile::kKeys - first : 0;
  item->whole_first = (item->First(item->Last(Tile::kRows)) + Tile::kKeys - 1) / Tile::kKeys;
  item->whole_end = item->End(item->top) / Tile::kKeys;
#pragma unroll
  for (int i = 0; i < Tile::kGroups; ++i) {
    const int s = item->top + 64 * i, my_first = item->First(s);
    const int my_end = s < item->S ? item->End(min(s + 64, item->S) - 1) : 0;
    item->firsts[i] = my_first / Tile::kKeys;
    item->lasts[i] = my_end > my_first ? (my_end - 1) / Tile::kKeys : first - 1;
  }
  return true;
}

// Round `round` of this block's items, there and back, so that lengths even out: -1 behind the
// last, -2 where there is none in this round.
__device__ inline int ItemOfRound(int round, int items) {
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  const int item = round * blocks + (round & 1 ? blocks - 1 - block : block);
  return item < items ? item : round * blocks < items ? -2 : -1;
}

}  // namespace
}  // namespace anyop::cuda
