// SPDX-License-Identifier: Apache-2.0
// Attention on Hopper under a narrow window, up to 64 features: four warpgroups that multiply, one
// that loads and cleans.
//
// A query sees a band of at most 129 keys, so that queries and results are most of the bytes. An
// item is 64 queries of all heads of a group, and the 192 keys that one of them sees, which come
// once. It is worked off in units of 16 queries of four heads: a warp has the queries of one head,
// whose band lies in the same 144 keys, so that little is multiplied in vain and nothing has to be
// rescaled. The warpgroups take units in turn, each for itself: one's exponentials run beside the
// others' products, loads and stores. Queries come sixteen units ahead, keys and values one item;
// what is not finite in values is taken away once for the item. A row's bits depend on its own keys
// alone.
#pragma once

#include "attention_sm90.h"

namespace anyop::cuda {
namespace {

struct HopperBand {
  static constexpr int kD = 64, kE = 64, kKeys = 144;  // kKeys: of a unit
  static constexpr int kQueriesOfUnit = 16, kHeadsOfUnit = 4;
  static constexpr int kRows = 64, kBand = kRows - kQueriesOfUnit + kKeys;  // of an item
  static constexpr int kWidest = kKeys - kQueriesOfUnit + 1;  // keys that a query may see
  static constexpr int kGroups = 4, kThreads = 128 * (kGroups + 1);
  static constexpr int kLoading = 32, kMultiplying = 112;  // registers: five times 96
  static constexpr int kCleaners = 3;                      // warps, asked one by one below
  static constexpr bool kKeepsQueries = false;
  static constexpr uint32_t kQueryPanel = 64 * 128, kKeyPanel = kBand * 128;
  static constexpr int kStages = 2, kQueriesOfGroup = 4, kQueries = kQueriesOfGroup * kGroups;
  static constexpr uint32_t kSharedBytes = kQueries * kQueryPanel + 2 * kStages * kKeyPanel;
};

struct BandState {
  uint64_t q_full[HopperBand::kQueries], q_empty[HopperBand::kQueries];
  uint64_t k_full[HopperBand::kStages], v_full[HopperBand::kStages];
  uint64_t v_clean[HopperBand::kStages], empty[HopperBand::kStages];
  HopperItem told[HopperBand::kStages];  // h: the first head, first: the first key, count: units
  bool is_bad[HopperBand::kStages][HopperBand::kCleaners];
  bool is_empty[HopperBand::kGroups][64];
};
struct BandTiles {
  uint32_t queries, keys, values;
  __device__ uint32_t Queries(uint32_t stage) const {
    return queries + stage * HopperBand::kQueryPanel;
  }
  __device__ uint32_t Keys(uint32_t stage) const { return keys + stage * HopperBand::kKeyPanel; }
  __device__ uint32_t Values(uint32_t stage) const {
    return values + stage * HopperBand::kKeyPanel;
  }
};

// Groups of heads first, as their queries are neighbours in memory. False where there are no
// queries.
__device__ inline bool FindBand(const AttentionView& p, int number, HopperItem* item) {
  using Tile = HopperBand;
  const int groups = p.H / p.group, rest = number / groups, b = rest / p.tiles;
  SequencePlace at = {0, p.S, 0, p.T, rest - b * p.tiles, b};
  if (p.cu_q) at = FindSequence(p, at.tile, Tile::kRows);
  if (!at.HasQueries(Tile::kRows)) return false;
  item->b = b, item->g = number - rest * groups, item->h = item->g * p.group;
  item->top = at.tile * Tile::kRows, item->q = at.first + item->top, item->k = at.key;
  item->S = at.end - at.first, item->T = at.keys;
  item->offset = p.cu_q ? item->T - item->S : p.offset;
  item->left = p.left, item->right = p.right;
  item->first = item->top + item->offset - item->left;
  const int queries = min(item->S - item->top, Tile::kRows);
  item->count =
      (queries + Tile::kQueriesOfUnit - 1) / Tile::kQueriesOfUnit * (p.group / Tile::kHeadsOfUnit);
  return true;
}

// By one thread.
__device__ inline void LoadBands(const AttentionView& p, const HopperMaps& maps, BandState& state,
                                 const BandTiles& tiles) {
  using Tile = HopperBand;
  const int quads = p.group / Tile::kHeadsOfUnit, items = static_cast<int>(p.items) / p.group;
  RingPlace<Tile::kStages> at;
  RingPlace<Tile::kQueries> q_at;
  for (int number = blockIdx.x;; number += gridDim.x) {
    HopperItem item = {};
    const bool is_last = number >= items;
    if (!is_last && !FindBand(p, number, &item)) continue;
    const uint32_t k_full = SharedAddress(&state.k_full[at.stage]);
    const uint32_t v_full = SharedAddress(&state.v_full[at.stage]);
    WaitAt(SharedAddress(&state.empty[at.stage]), at.parity ^ 1);
    if (is_last) item.h = -1;
    state.told[at.stage] = item;
    if (is_last) {
      Arrive(k_full), Arrive(v_full);
      return;
    }
    ArriveForBytes(k_full, Tile::kKeyPanel), ArriveForBytes(v_full, Tile::kKeyPanel);
    const int row = item.k + item.first;
    LoadBox(tiles.Keys(at.stage), maps.k, k_full, 0, row, item.g, item.b);
    LoadBox(tiles.Values(at.stage), maps.v, v_full, 0, row, item.g, item.b);
    at.Next();
    int q = item.q, h = item.h;
    for (int left = item.count, quad = 0; left > 0; --left, q_at.Next()) {
      const uint32_t full = SharedAddress(&state.q_full[q_at.stage]);
      WaitAt(SharedAddress(&state.q_empty[q_at.stage]), q_at.parity ^ 1);
      ArriveForBytes(full, Tile::kQueryPanel);
#pragma unroll
      for (int i = 0; i < Tile::kHeadsOfUnit; ++i)
        LoadBox(tiles.Queries(q_at.stage) + i * Tile::kQueriesOfUnit * 128, maps.q, full, 0, q,
                h + i, item.b);
      h += Tile::kHeadsOfUnit;
      if (++quad == quads) quad = 0, h = item.h, q += Tile::kQueriesOfUnit;
    }
  }
}

// By kCleaners warps, behind that which loads.
template <typename T>
__device__ void CleanBands(BandState& state, const BandTiles& tiles) {
  using Tile = HopperBand;
  const int thread = static_cast<int>(threadIdx.x) - 32, warp = thread / 32, lane = thread % 32;
  for (RingPlace<Tile::kStages> at;; at.Next()) {
    WaitAt(SharedAddress(&state.v_full[at.stage]), at.parity);
    if (state.told[at.stage].h < 0) return;
    bool* is_bad = &state.is_bad[at.stage][warp];
    if (lane == 0) *is_bad = false;
    __syncwarp();
    CleanTile<Tile::kBand, Tile::kE, T, 32 * Tile::kCleaners>(tiles.Values(at.stage), thread,
                                                              Tile::kBand, is_bad);
    FenceForTma();
    __syncwarp();
    if (lane == 0) Arrive(SharedAddress(&state.v_clean[at.stage]));
  }
}

// What a warpgroup does with a unit.
template <typename T>
struct BandUnit {
  using Tile = HopperBand;
  static constexpr Operand kType = kOperandOf<T>;
  HopperRows<T, Tile> rows;
  int sub, h;  // the unit's first query of the item; the warp's head

  // Zeroes end the lives of what was in these registers.
  __device__ void Multiply(uint32_t q, uint32_t k) {
#pragma unroll
    for (float& score : rows.scores) score = 0;
    FenceProducts();
#pragma unroll
    for (int i = 0; i < Tile::kD / 16; ++i) {
      const uint64_t q_tile = TileOf(q) + 2 * i;
      Product<128>::template Add<kType>(reinterpret_cast<float (&)[64]>(rows.scores[0]), q_tile,
                                        TileOf(k) + 2 * i, i);
      Product<16>::template Add<kType>(reinterpret_cast<float (&)[8]>(rows.scores[64]), q_tile,
                                       TileOf(k + 128 * 128) + 2 * i, i);
    }
    CommitProducts();
  }
  // Most keys are seen by all queries.
  __device__ void Hide(const HopperItem& item) {
    const int lane = ComputedHere(threadIdx.x) % 32, k = item.first + sub, top = item.top + sub;
    const int s = top + lane / 4, t = k + lane % 4 * 2;
    const int2 first = {item.First(s) - t, item.First(s + 8) - t};
    const int2 end = {item.End(s) - t, item.End(s + 8) - t};
    const int all_first = item.First(top + Tile::kQueriesOfUnit - 1) - k;
    const int all_end = item.End(top) - k;
#pragma unroll
    for (int n = 0; n < Tile::kKeys; n += 16) {
      if (n >= all_first && n + 16 <= all_end) continue;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int key = n + i / 4 * 8 + i % 2;
        const bool is_seen =
            i / 2 % 2 ? key >= first.y && key < end.y : key >= first.x && key < end.x;
        if (!is_seen) rows.scores[n / 2 + i] = -INFINITY;
      }
    }
  }
  __device__ void Write(const AttentionView& p, const HopperItem& item, float scale) {
    const int lane = ComputedHere(threadIdx.x) % 32;
    const int s = item.top + sub + lane / 4, to = item.q + sub + lane / 4;
    T* out = static_cast<T*>(p.out) + p.out_steps.At(item.b, h, to);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float total = rows.sum[half];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      const RowEnd<float> done = EndRow(p, h, rows.max[half] * scale, total);
      const bool is_there = s + 8 * half < item.S;
      if (p.lse && lane % 4 == 0 && is_there)
        p.lse[p.lse_steps.At(item.b, h, to + 8 * half)] = LogOf(done);
      rows.Write(is_there ? out : nullptr, half, total == 0 ? 0 : done.share, p.E);
      out += 8 * p.out_steps.row;
    }
  }
};

// By a warpgroup.
template <typename T>
__device__ void AttendToBands(const AttentionView& p, BandState& state, const BandTiles& tiles,
                              float scale, int group) {
  using Tile = HopperBand;
  const int thread = threadIdx.x % 128, warp = thread / 32;
  const int quads = p.group / Tile::kHeadsOfUnit;
  int unit = group;
  uint32_t turn = 0;  // units that this warpgroup has had
  for (uint32_t n = 0;; ++n) {
    const uint32_t stage = n % Tile::kStages, parity = n / Tile::kStages & 1;
    WaitAt(SharedAddress(&state.k_full[stage]), parity);
    const HopperItem& item = state.told[stage];
    if (item.h < 0) return;
    const int count = item.count;
    for (; unit < count; unit += Tile::kGroups) {
      const int sixteen = unit / quads;
      BandUnit<T> mine;  // here, so that none of it is kept from one unit to the next
      mine.sub = sixteen * Tile::kQueriesOfUnit;
      mine.h = item.h + (unit - sixteen * quads) * Tile::kHeadsOfUnit + warp;
      const uint32_t q_stage = group + turn % Tile::kQueriesOfGroup * Tile::kGroups;
      WaitAt(SharedAddress(&state.q_full[q_stage]), turn / Tile::kQueriesOfGroup & 1);
      ++turn;
      mine.Multiply(tiles.Queries(q_stage), tiles.Keys(stage) + mine.sub * 128);
      WaitForProducts<0>();
      Pin(mine.rows.scores);
      if (thread == 0) Arrive(SharedAddress(&state.q_empty[q_stage]));
      mine.Hide(item);
      mine.rows.template Weigh<true>(scale);
      mine.rows.Narrow();
      WaitAt(SharedAddress(&state.v_clean[stage]), parity);
#pragma unroll
      for (float& value : mine.rows.out) value = 0;
      mine.rows.AddValues(tiles.Values(stage) + mine.sub * 128, true);
      WaitForProducts<0>();
      Pin(mine.rows.out);
      mine.Write(p, item, scale);
      const bool* is_bad = state.is_bad[stage];
      if (is_bad[0] || is_bad[1] || is_bad[2]) {
        bool* is_empty = state.is_empty[group];
#pragma unroll
        for (int half = 0; half < 2; ++half)
          if (thread % 4 == 0)
            is_empty[thread / 32 * 16 + thread % 32 / 4 + 8 * half] =
                mine.rows.max[half] == -INFINITY;
        MeetAt(1 + group, 128);
        HopperItem of_head = item;
        of_head.top += mine.sub, of_head.q += mine.sub, of_head.h = mine.h - warp;
        const int rows = min(Tile::kQueriesOfUnit, of_head.S - of_head.top);
#pragma unroll 1
        for (int i = 0; i < Tile::kHeadsOfUnit; ++i, ++of_head.h)
          AddBadValuesOf<T>(p, of_head, 0, rows, thread, is_empty + Tile::kQueriesOfUnit * i);
        MeetAt(1 + group, 128);
      }
    }
    unit -= count;
    __syncwarp();
    if (thread % 32 == 0) Arrive(SharedAddress(&state.empty[stage]));
  }
}

template <typename T>
__global__ __launch_bounds__(HopperBand::kThreads,
                             1) void AttendInBand(const __grid_constant__ CUtensorMap q_map,
                                                  const __grid_constant__ CUtensorMap k_map,
                                                  const __grid_constant__ CUtensorMap v_map,
                                                  const __grid_constant__ AttentionView p,
                                                  const float scale) {
  using Tile = HopperBand;
  uint8_t* const shared = SharedTiles();
  __shared__ BandState state;
  const uint32_t queries = SharedAddress(shared);
  const uint32_t keys = queries + Tile::kQueries * Tile::kQueryPanel;
  const BandTiles tiles = {queries, keys, keys + Tile::kStages * Tile::kKeyPanel};
  if (p.cu_q && (!AreInOrder<Tile::kThreads>(p.cu_q, p.sequences, p.S) ||
                 !AreInOrder<Tile::kThreads>(p.cu_k, p.sequences, p.T))) {
    for (int64_t item = blockIdx.x; item < p.items; item += gridDim.x)
      FillWithNan<T, Tile::kThreads>(p, HopperPlace(p, p.tiles, static_cast<int>(item), 0),
                                     Tile::kRows);
    return;
  }
  if (threadIdx.x == 0) {
    for (int i = 0; i < Tile::kQueries; ++i)
      InitBarrier(SharedAddress(&state.q_full[i]), 1),
          InitBarrier(SharedAddress(&state.q_empty[i]), 1);
    for (int i = 0; i < Tile::kStages; ++i) {
      InitBarrier(SharedAddress(&state.k_full[i]), 1);
      InitBarrier(SharedAddress(&state.v_full[i]), 1);
      InitBarrier(SharedAddress(&state.v_clean[i]), Tile::kCleaners);
      InitBarrier(SharedAddress(&state.empty[i]), 4 * Tile::kGroups);
    }
    FenceBarriers();
    PrefetchMap(&q_map), PrefetchMap(&k_map), PrefetchMap(&v_map);
  }
  __syncthreads();
  // By the shuffle the compiler knows that it is one number: addresses need no vector registers.
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0) - 1;
  if (group < 0) {
    GiveRegisters<Tile::kLoading>();
    const HopperMaps maps = {&q_map, &k_map, &v_map};
    if (threadIdx.x == 0) {
      LoadBands(p, maps, state, tiles);
    } else if (threadIdx.x >= 32) {
      CleanBands<T>(state, tiles);
    }
  } else {
    TakeRegisters<Tile::kMultiplying>();
    AttendToBands<T>(p, state, tiles, scale, group);
  }
}

// ---- host ----

// Few keys, and heads that come four at a time; of pages it is none.
inline bool IsBand(const AttentionProblem& p) {
  return p.softcap == 0 && p.H / p.G % HopperBand::kHeadsOfUnit == 0 &&
         p.window.left + p.window.right < HopperBand::kWidest;
}

template <typename T>
int32_t RunInBand(const AttentionProblem& problem, const AttentionView& p, AnyopCall* call) {
  using Tile = HopperBand;
  constexpr auto kernel = AttendInBand<T>;
  CUtensorMap q, k, v;
  if (p.items > INT32_MAX / 2 || !EncodeHeads(&q, *problem.q, Tile::kQueriesOfUnit) ||
      !EncodeHeads(&k, *problem.k, Tile::kBand) || !EncodeHeads(&v, *problem.v, Tile::kBand))
    return DeclineHopper(call);
  if (const int32_t status = AllowShared<kernel>(call, Tile::kSharedBytes)) return status;
  Limits limits;
  if (const int32_t status = ReadLimits(call, &limits)) return status;
  const int64_t blocks = std::min<int64_t>(p.items / p.group, limits.multiprocessors);
  const Launch launch = {dim3(static_cast<unsigned>(blocks)), dim3(Tile::kThreads),
                         Tile::kSharedBytes};
  return launch.Run(call, kernel, q, k, v, p, FactorsOf(p).scale);
}

}  // namespace
}  // namespace anyop::cuda
