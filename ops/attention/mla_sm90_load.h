// SPDX-License-Identifier: Apache-2.0
// Latent attention on Hopper: tiles and parts, and how queries and latent rows come to shared
// memory.
#pragma once

#include "anyop/cuda/hopper.h"
#include "attention_paged_view.h"

namespace anyop::cuda {
namespace {

// kNumbers of a row, zeroes behind its own. Panels are of 64 numbers; the ninth of the second
// buffer of rows holds the last numbers until scores are there, and then weights.
template <int kNumbers>
struct LatentHopper {
  static constexpr int kD = kNumbers, kE = 256;  // kE: columns of a warpgroup, half of the values
  static constexpr int kRows = 64, kKeys = 64;
  static constexpr int kPanels = kD / 64, kGroups = (kPanels + 1) / 2;  // panels come by two
  static constexpr bool kKeepsQueries = false;
  static constexpr uint32_t kPanel = 64 * 128, kKeyPanel = kPanel, kQueryPanel = kPanel;
  // Queries, two buffers of rows, the first warpgroup's weights.
  static constexpr uint32_t kBuffer = 9 * kPanel, kSharedBytes = 3 * kBuffer + kPanel;
  // The order of a buffer's panels: that in which both warpgroups give them back. The first's half
  // of the values of buffer 0 comes back before the second's.
  static constexpr __host__ __device__ int PanelOf(int buffer, int i) {
    return buffer == 0 || i == 8 ? i : i / 4 * 2 + i / 2 % 2 * 4 + i % 2;
  }
};

// Meetings of both warpgroups, and of each.
constexpr int kLatentFirst = 1, kLatentSecond = 2, kLatentOwn = 3;
constexpr int kLatentTold = 4;  // items that are kept: who loads is no more than two ahead

// A tile of queries and a part of the keys that they see, in pairs of blocks of 64; 0: the end.
struct LatentItem {
  PagedPlace at;  // is_wrong: also a page or an index that was found
  PagedKeys keys;
  int part, rows;
  int first, pairs;      // the first block in its sequence
  int end;               // of the keys that one of the rows sees
  int whole, whole_end;  // blocks all of whose keys all rows see
};
// In shared memory. full, empty: of each buffer, of two panels; empty of the ninth: with the two
// before.
struct LatentState {
  uint64_t q_full, q_empty, full[2][5], empty[2][4], told[kLatentTold];
  alignas(16) uint8_t there[2][16];  // of listed rows: bit i of [4 k + w]: row 16 k + 4 w + i
  float base[2][64], sum[2][64];
  LatentItem items[kLatentTold];
  bool is_bad;
};
// False where there is nothing to do.
__device__ inline bool FindLatent(const PagedView& p, int number, LatentItem* item) {
  const int part = number / p.tiles;
  PagedPlace at = FindPaged(p, number - part * p.tiles, 64);
  if (at.is_wrong) at.T = 0;
  if (!at.is_there || (part > 0 && int64_t{part} * p.part >= at.T)) return false;
  PagedKeys keys = {at.T - at.S, p.left, p.right, part * p.part, 0};
  keys.end = std::min(at.T - keys.begin, p.part) + keys.begin;
  const int rows = std::min(at.rows - at.row, 64), first = keys.begin / 64;
  const int end = keys.End((at.row + rows - 1) / p.H);
  const int count = end > keys.begin ? end - 64 * first : 0;
  const int all_end = std::max(keys.End(at.row / p.H), 0);
  *item = {at,
           keys,
           part,
           rows,
           first,
           std::max(1, (count + 127) / 128),
           end,
           keys.begin % 64 != 0,
           all_end / 64 - first};
  return true;
}
// All items of this block: visit(item, number of items before). kTells: of the first warpgroup that
// loads rows, whose thread 0 finds them.
template <bool kTells, typename Visit>
__device__ void ForLatentItems(const PagedView& p, LatentState& state, const Visit& visit) {
  int number = blockIdx.x;
  for (int n = 0;; ++n) {
    LatentItem& item = state.items[n % kLatentTold];
    const uint32_t told = SharedAddress(&state.told[n % kLatentTold]);
    if (kTells && threadIdx.x == 0) {
      bool found = false;
      for (; !found && number < p.tiles * p.count; number += gridDim.x)
        found = FindLatent(p, number, &item);
      if (!found) item.pairs = 0;
      Arrive(told);
    }
    WaitAt(told, n / kLatentTold & 1);
    if (item.pairs == 0) return;
    visit(item, n);
  }
}

// A tile of queries, by kLoaders threads in eights.
template <typename T, typename Tile, int kLoaders>
__device__ void LoadLatentQueries(const PagedView& p, const LatentItem& item, uint32_t to,
                                  int thread) {
  const int piece = thread % 8;
#pragma unroll 1
  for (int r = thread / 8; r < 64; r += kLoaders / 8) {
    const int row = item.at.row + r;
    const bool is_there = r < item.rows;
    const T* q = static_cast<const T*>(p.q) + 8 * piece;
    if (is_there) q += p.At(p.q_steps, row % p.H, item.at.first + row / p.H);
#pragma unroll
    for (int i = 0; i < Tile::kPanels; ++i) {
      const bool has = is_there && 64 * i + 8 * piece < p.D;
      CopyAside(to + i * Tile::kPanel + Swizzled(r, piece), has ? q + 64 * i : p.q, has);
    }
  }
}
template <typename T, typename Tile>
__device__ void LoadAllLatentQueries(const PagedView& p, LatentState& state, uint32_t to) {
  const int thread = static_cast<int>(threadIdx.x) - 32;
  const uint32_t full = SharedAddress(&state.q_full), empty = SharedAddress(&state.q_empty);
  ForLatentItems<false>(p, state, [&](const LatentItem& item, int n) {
    WaitAt(empty, (n & 1) ^ 1);
    LoadLatentQueries<T, Tile, 96>(p, item, to, thread);
    ArriveWhenCopied(full);
  });
}

// Rows by TMA, in boxes of so many of a page: by a warp, each lane a box of the block.
template <typename Tile>
__device__ void LoadLatentPages(const PagedView& p, const CUtensorMap* map, LatentState& state,
                                uint32_t buffers, int box) {
  const int lane = threadIdx.x;
  const bool is_mine = lane < 64 / box;
  uint32_t count = 0;  // of blocks
  ForLatentItems<true>(p, state, [&](LatentItem& item, int) {
    const PagedPlace at = item.at;
    const int blocks = 2 * item.pairs, end = is_mine ? item.end : 0;
    int t = 64 * item.first + lane * box;
    int entry = EntryOfKey(p, at, t, end);
#pragma unroll 1
    for (int j = 0; j < blocks; ++j, ++count, t += 64) {
      const int b = count & 1, parity = count >> 1 & 1;
      const KeyPlace place = PlaceOfEntry(p, entry, t, end);
      const bool is_right = place.IsRight(p);
      const int page = is_right ? place.page : 0, y = is_right ? place.place : p.P;  // P: zeroes
      if (place.IsWrong(p)) item.at.is_wrong = true;
      entry = EntryOfKey(p, at, t + 64, end);
      const uint32_t to = buffers + b * Tile::kBuffer + (is_mine ? lane * box * 128 : 0);
      const uint32_t full = SharedAddress(state.full[b]), empty = SharedAddress(state.empty[b]);
      __syncwarp();
      WaitAt(empty, parity ^ 1);
      if (lane < Tile::kGroups)
        ArriveForBytes(full + 8 * lane, (2 * lane + 2 > Tile::kPanels ? 1 : 2) * Tile::kPanel);
      __syncwarp();
#pragma unroll
      for (int i = 0; i < Tile::kPanels; ++i) {
        const int panel = Tile::PanelOf(b, i);
        if (i % 2 == 0 && i < 8) WaitAt(empty + 8 * (panel / 2), parity ^ 1);
        if (is_mine)
          LoadBox(to + panel * Tile::kPanel, map, full + panel / 2 * 8, 64 * panel, y, page, 0);
      }
    }
  });
}

// Where a thread's four rows lie, 16 keys apart.
template <typename T>
struct LatentRows {
  const int32_t* list;  // of the item
  int entries[4];       // of the block that comes next
  const T* from[4];
  uint32_t is_there;

  __device__ void LookUp(const PagedView& p, int t, int end) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const int key = t + 16 * k;
      entries[k] = key < end ? list[p.indices ? key : key / p.P] : -1;
    }
  }
  // Whether all entries are -1 or right.
  __device__ bool Find(const PagedView& p, int t, int end) {
    const T* first = static_cast<const T*>(p.k) + threadIdx.x % 8 * 8;
    bool is_wrong = false;
    is_there = 0;
    if (p.indices && p.N == 1) {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const bool is_right = static_cast<uint32_t>(entries[k]) < static_cast<uint32_t>(p.P);
        is_wrong |= !is_right && entries[k] != -1;
        from[k] = first + (is_right ? entries[k] * p.k_steps.row : 0);
        is_there |= is_right << k;
      }
      return !is_wrong;
    }
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const KeyPlace place = PlaceOfEntry(p, entries[k], t + 16 * k, end);
      const bool is_right = place.IsRight(p);
      is_wrong |= place.IsWrong(p);
      from[k] = first + (is_right ? p.k_steps.At(place.page, 0, place.place) : 0);
      is_there |= is_right << k;
    }
    return !is_wrong;
  }
};

// A block of rows to buffer kBuffer.
template <typename T, typename Tile, int kBuffer>
__device__ void CopyLatentRows(const PagedView& p, LatentState& state, uint32_t buffers,
                               const LatentRows<T>& rows, uint32_t parity) {
  const int thread = threadIdx.x, lane = thread % 32, piece = thread % 8;
  const uint32_t to = buffers + kBuffer * Tile::kBuffer + Swizzled(thread / 8, piece);
  const uint32_t full = SharedAddress(state.full[kBuffer]);
  const uint32_t empty = SharedAddress(state.empty[kBuffer]);
  uint32_t there[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const uint32_t lanes = __ballot_sync(~0u, rows.is_there >> k & 1);
    there[k] = (lanes & 1) | (lanes >> 7 & 2) | (lanes >> 14 & 4) | (lanes >> 21 & 8);
  }
#pragma unroll
  for (int i = 0; i < Tile::kPanels; ++i) {
    const int panel = Tile::PanelOf(kBuffer, i);
    if (i % 2 == 0 && i < 8) WaitAt(empty + panel / 2 * 8, parity ^ 1);
    const bool has = (Tile::kD == 576 && i < 8) || 64 * panel + 8 * piece < p.D;
#pragma unroll
    for (int k = 0; k < 4; ++k)
      CopyAside(to + panel * Tile::kPanel + k * 2048, rows.from[k] + 64 * panel,
                has && (rows.is_there >> k & 1));
    if (i % 2 == 1 || i + 1 == Tile::kPanels) ArriveWhenCopied(full + panel / 2 * 8);
    if (i > 0) continue;
    if (lane == 0)
#pragma unroll
      for (int k = 0; k < 4; ++k) state.there[kBuffer][4 * k + thread / 32] = there[k];
    __syncwarp();
    if (lane == 0) Arrive(full);
  }
}

// Rows wherever they lie, by a warpgroup: eight threads for a row, four rows each.
template <typename T, typename Tile>
__device__ void LoadLatentRows(const PagedView& p, LatentState& state, uint32_t queries,
                               uint32_t buffers) {
  uint32_t pair = 0;
  ForLatentItems<true>(p, state, [&](LatentItem& item, int n) {
    const int pairs = item.pairs, end = item.end;
    int t = 64 * item.first + static_cast<int>(threadIdx.x) / 8;
    LatentRows<T> rows;
    rows.list = (p.indices ? p.indices : p.table) + int64_t{item.at.b} * p.M;
    rows.LookUp(p, t, end);
    WaitAt(SharedAddress(&state.q_empty), (n & 1) ^ 1);
    LoadLatentQueries<T, Tile, 128>(p, item, queries, threadIdx.x);
    ArriveWhenCopied(SharedAddress(&state.q_full));
    const auto step = [&] {
      if (!rows.Find(p, t, end)) item.at.is_wrong = true;
      t += 64;
      rows.LookUp(p, t, end);
    };
    step();
#pragma unroll 1
    for (int i = 0; i < pairs; ++i, ++pair) {
      CopyLatentRows<T, Tile, 0>(p, state, buffers, rows, pair & 1);
      step();
      CopyLatentRows<T, Tile, 1>(p, state, buffers, rows, pair & 1);
      step();
    }
  });
}

}  // namespace
}  // namespace anyop::cuda
