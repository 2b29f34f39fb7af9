// SPDX-License-Identifier: Apache-2.0
// Attention on Hopper under a narrow window, up to 64 features: four warpgroups that multiply, one
// that loads and cleans.
//
// A query sees a band of at most 129 keys, so that queries and results are most of the bytes. An
// item is 64 queries of all heads of a group, and the 192 keys that one of them sees, which come
// once. It is worked off in units of 16 queries of four heads: a warp has the queries of one head,
// whose band lies in the same 144 keys, so that little is multiplied in vain and nothing has to be
// rescaled. The warpgroups take units in turn, each for itself: one's exponentials run beside the
// others' products, loads and stores. Queries come eight units ahead, keys and values two items, by
// a warp each, so that neither waits for room for the other; what is not finite in values is taken
// away once for the item. Results go by TMA from where a unit's queries were. A row's bits depend
// on its own keys alone.
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
  static constexpr int kCleaners = 2;                      // warps, asked one by one below
  static constexpr bool kKeepsQueries = false;
  static constexpr uint32_t kQueryPanel = 64 * 128, kKeyPanel = kBand * 128;
  static constexpr int kStages = 3, kQueriesOfGroup = 2, kQueries = kQueriesOfGroup * kGroups;
  static constexpr uint32_t kSharedBytes = kQueries * kQueryPanel + 2 * kStages * kKeyPanel;
};

// 16 queries of four heads, told by the thread that loads them.
struct BandPlace {
  int sub, h;     // the first query of the item; the first head
  bool is_plain;  // no query's keys are cut short by where keys begin or end
};
struct BandState {
  uint64_t q_full[HopperBand::kQueries], q_empty[HopperBand::kQueries];
  uint64_t k_full[HopperBand::kStages], v_full[HopperBand::kStages];
  uint64_t v_clean[HopperBand::kStages], empty[HopperBand::kStages];
  BandPlace places[HopperBand::kQueries];
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

// Keys and values, by one thread.
__device__ inline void LoadBands(const AttentionView& p, const HopperMaps& maps, BandState& state,
                                 const BandTiles& tiles) {
  using Tile = HopperBand;
  const int items = static_cast<int>(p.items) / p.group;
  RingPlace<Tile::kStages> at;
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
  }
}

// Queries, by one thread.
__device__ inline void LoadUnits(const AttentionView& p, const HopperMaps& maps, BandState& state,
                                 const BandTiles& tiles) {
  using Tile = HopperBand;
  const int items = static_cast<int>(p.items) / p.group;
  RingPlace<Tile::kQueries> at;
  for (int number = blockIdx.x; number < items; number += gridDim.x) {
    HopperItem item = {};
    if (!FindBand(p, number, &item)) continue;
    BandPlace unit = {0, item.h, false};
    for (int left = item.count; left > 0; --left, at.Next()) {
      const int first = item.first + unit.sub, last = item.top + unit.sub + Tile::kQueriesOfUnit;
      unit.is_plain = first >= 0 && last + item.offset + item.right <= item.T;
      const uint32_t full = SharedAddress(&state.q_full[at.stage]);
      WaitAt(SharedAddress(&state.q_empty[at.stage]), at.parity ^ 1);
      state.places[at.stage] = unit;
      ArriveForBytes(full, Tile::kQueryPanel);
      LoadBox(tiles.Queries(at.stage), maps.q, full, 0, item.q + unit.sub, unit.h, item.b);
      unit.h += Tile::kHeadsOfUnit;
      if (unit.h == item.h + p.group) unit.h = item.h, unit.sub += Tile::kQueriesOfUnit;
    }
  }
}

// By kCleaners warps, behind those that load.
template <typename T>
__device__ void CleanBands(BandState& state, const BandTiles& tiles) {
  using Tile = HopperBand;
  const int thread = static_cast<int>(threadIdx.x) - 64, warp = thread / 32, lane = thread % 32;
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
  HopperRows<T, Tile> rows;
  int sub, h;  // the unit's first query of the item; the warp's head

  // By two products a step: one of all keys would need more registers than a thread begins with.
  // Zeroes end the lives of what was in these registers.
  __device__ void Multiply(uint32_t q, uint32_t k) {
    constexpr int kHalf = Tile::kKeys / 2;
    const uint64_t queries = TileOf(q), keys = TileOf(k);
#pragma unroll
    for (float& score : rows.scores) score = 0;
    FenceProducts();
#pragma unroll
    for (int i = 0; i < Tile::kD / 16; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        Product<kHalf>::template Add<kOperandOf<T>>(
            reinterpret_cast<float (&)[kHalf / 2]>(rows.scores[kHalf / 2 * half]),
            MovedBy(queries, 2 * i), MovedBy(keys, 8 * kHalf * half + 2 * i), i);
    CommitProducts();
  }
  // In a plain unit, row r sees keys r to r + left + right: but for the first and the last of them,
  // all rows see all keys.
  __device__ void Hide(const HopperItem& item, bool is_plain) {
    const int lane = ComputedHere(threadIdx.x) % 32, row = lane / 4, key = lane % 4 * 2;
    if (!is_plain) {
      const int s = item.top + sub + row;
      return rows.Hide(item.first + sub + key, {item.First(s), item.First(s + 8)},
                       {item.End(s), item.End(s + 8)});
    }
    const int width = item.left + item.right + 1, first = row - key, end = first + width;
#pragma unroll
    for (int n = 0; n < Tile::kKeys; n += 16) {
      if (n > 0 && n + 16 <= width) continue;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int t = n + i / 4 * 8 + i % 2 - i / 2 % 2 * 8;
        if ((n == 0 && t < first) || t >= end) rows.scores[n / 2 + i] = -INFINITY;
      }
    }
  }
  // Scores to weights, which are 2^(scale (score - max)), and their sums, by two chains a row.
  __device__ void Weigh(float scale) {
    float base[2], sum[4] = {0, 0, 0, 0};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float most = rows.Most(r);
      most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
      rows.max[r] = most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
      base[r] = most == -INFINITY ? 0 : most * scale;
    }
#pragma unroll
    for (int i = 0; i < Tile::kKeys / 2; ++i)
      rows.scores[i] = PowerOfTwo(MulAdd(rows.scores[i], scale, -base[i / 2 % 2]));
#pragma unroll
    for (int i = 0; i < Tile::kKeys / 2; ++i) sum[i % 4] += rows.scores[i];
    rows.sum[0] = sum[0] + sum[1], rows.sum[1] = sum[2] + sum[3];
  }
  // What the sums of both rows are multiplied by.
  __device__ float2 End(const AttentionView& p, const HopperItem& item, float scale,
                        float sink_of_head) {
    // Not before, as the load takes as long as the exponentials.
    const float sink =
        __uint_as_float(ComputedHere(__float_as_uint(sink_of_head))) * 1.44269504088896340736f;
    const int lane = ComputedHere(threadIdx.x) % 32, half = lane % 4;
    RowEnd<float> end[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float total = rows.sum[r];
      total += __shfl_xor_sync(~0u, total, 1);
      total += __shfl_xor_sync(~0u, total, 2);
      const float max = rows.max[r] * scale, most = sink <= max ? max : sink;  // NaN: a sink's
      const float base = most == -INFINITY ? 0 : most, share = PowerOfTwo(max - base);
      const float sum = total * share + PowerOfTwo(sink - base);
      end[r] = {most, sum, total == 0 ? 0 : share * Reciprocal(sum)};
    }
    const int s = sub + lane / 4 + 8 * half;
    if (p.lse && half < 2 && item.top + s < item.S)
      p.lse[p.lse_steps.At(item.b, h, item.q + s)] = LogOf(half ? end[1] : end[0]);
    return {end[0].share, end[1].share};
  }
  // From `at`, where the warp's queries were: by TMA, or row by row.
  __device__ void Write(const AttentionView& p, const CUtensorMap* map, const HopperItem& item,
                        uint32_t at, float2 share, bool by_box) {
    const int lane = ComputedHere(threadIdx.x) % 32;
#pragma unroll
    for (int j = 0; j < Tile::kE / 16; ++j) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* two = rows.out + 8 * j + 2 * i;
        const float by = i % 2 ? share.y : share.x;
        w[i] = NarrowTwo(T(), two[0] * by, two[1] * by);
      }
      StoreMatrices(at + Swizzled(lane % 16, 2 * j + lane / 16), w[0], w[1], w[2], w[3]);
    }
    FenceForTma();
    __syncwarp();
    if (!by_box) return WriteRows(p, item, at);
    if (lane > 0) return;
    StoreBox(map, at, 0, item.q + sub, h, item.b);
    CommitStores();
  }

 private:
  __device__ void WriteRows(const AttentionView& p, const HopperItem& item, uint32_t at) {
    const int lane = threadIdx.x % 32, piece = lane % 8;
    const int count = min(item.S - item.top - sub, Tile::kQueriesOfUnit);
#pragma unroll 1
    for (int row = lane / 8; row < count && 8 * piece < p.E; row += 4) {
      uint32_t w[4];
      LoadShared(w, at + Swizzled(row, piece));
      T* to = static_cast<T*>(p.out) + p.out_steps.At(item.b, h, item.q + sub + row) + 8 * piece;
      *reinterpret_cast<uint4*>(to) = make_uint4(w[0], w[1], w[2], w[3]);
    }
    __syncwarp();
  }
};

// Values that are not finite, added to a unit's results, which its threads have written.
template <typename T>
__device__ void AddBadValuesOf(const AttentionView& p, const BandUnit<T>& unit, HopperItem item,
                               int thread, int group, bool* is_empty) {
  using Tile = HopperBand;
  const int warp = thread / 32;
#pragma unroll
  for (int half = 0; half < 2; ++half)
    if (thread % 4 == 0)
      is_empty[warp * 16 + thread % 32 / 4 + 8 * half] = unit.rows.max[half] == -INFINITY;
  MeetAt(1 + group, 128);
  item.top += unit.sub, item.q += unit.sub, item.h = unit.h - warp;
  const int rows = min(Tile::kQueriesOfUnit, item.S - item.top);
#pragma unroll 1
  for (int i = 0; i < Tile::kHeadsOfUnit; ++i, ++item.h)
    AddBadValuesOf<T>(p, item, 0, rows, thread, is_empty + Tile::kQueriesOfUnit * i);
  MeetAt(1 + group, 128);
}

// By a warpgroup.
template <typename T>
__device__ void AttendToBands(const AttentionView& p, const CUtensorMap* out_map, BandState& state,
                              const BandTiles& tiles, float scale, int group) {
  using Tile = HopperBand;
  const int thread = threadIdx.x % 128, warp = __shfl_sync(~0u, thread / 32, 0);
  const auto place_of = [&](uint32_t turn) {
    return group + turn % Tile::kQueriesOfGroup * Tile::kGroups;
  };
  int unit = group;
  uint32_t turn = 0;  // units that this warpgroup has had
  for (uint32_t n = 0;; ++n) {
    const uint32_t stage = n % Tile::kStages, parity = n / Tile::kStages & 1;
    WaitAt(SharedAddress(&state.k_full[stage]), parity);
    const HopperItem& item = state.told[stage];
    if (item.h < 0) break;
    const int count = item.count;
    for (; unit < count; unit += Tile::kGroups, ++turn) {
      const uint32_t place = place_of(turn), q = tiles.Queries(place);
      WaitAt(SharedAddress(&state.q_full[place]), turn / Tile::kQueriesOfGroup & 1);
      BandUnit<T> mine;  // here, so that none of it is kept from one unit to the next
      mine.sub = state.places[place].sub, mine.h = state.places[place].h + warp;
      mine.Multiply(q, tiles.Keys(stage) + mine.sub * 128);
      const float sink = p.sinks ? p.sinks[mine.h] : -INFINITY;
      if (turn > 0 && thread % 32 == 0) {  // the results before have left their place
        WaitForStores<0>();
        Arrive(SharedAddress(&state.q_empty[place_of(turn - 1)]));
      }
      WaitForProducts<0>();
      Pin(mine.rows.scores);
      // Not behind the exponentials, which ptxas mixes with what is made of them up to a jump.
      WaitAt(SharedAddress(&state.v_clean[stage]), parity);
      mine.Hide(item, state.places[place].is_plain);
      mine.Weigh(scale);
      mine.rows.Narrow();
#pragma unroll
      for (float& value : mine.rows.out) value = 0;
      mine.rows.AddValues(tiles.Values(stage) + mine.sub * 128, true);
      const float2 share = mine.End(p, item, scale, sink);
      const bool is_bad = state.is_bad[stage][0] || state.is_bad[stage][1];
      const bool is_whole = item.top + mine.sub + Tile::kQueriesOfUnit <= item.S;
      WaitForProducts<0>();
      Pin(mine.rows.out);
      mine.Write(p, out_map, item, q + warp * Tile::kQueriesOfUnit * 128, share,
                 is_whole && !is_bad);
      if (is_bad) AddBadValuesOf<T>(p, mine, item, thread, group, state.is_empty[group]);
    }
    unit -= count;
    __syncwarp();
    if (thread % 32 == 0) Arrive(SharedAddress(&state.empty[stage]));
  }
  if (thread % 32 == 0) WaitForStores<0>();
}

template <typename T>
__global__ __launch_bounds__(HopperBand::kThreads, 1) void AttendInBand(
    const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
    const __grid_constant__ CUtensorMap v_map, const __grid_constant__ CUtensorMap out_map,
    const __grid_constant__ AttentionView p, const float scale) {
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
          InitBarrier(SharedAddress(&state.q_empty[i]), 4);
    for (int i = 0; i < Tile::kStages; ++i) {
      InitBarrier(SharedAddress(&state.k_full[i]), 1);
      InitBarrier(SharedAddress(&state.v_full[i]), 1);
      InitBarrier(SharedAddress(&state.v_clean[i]), Tile::kCleaners);
      InitBarrier(SharedAddress(&state.empty[i]), 4 * Tile::kGroups);
    }
    FenceBarriers();
    PrefetchMap(&q_map), PrefetchMap(&k_map), PrefetchMap(&v_map), PrefetchMap(&out_map);
  }
  __syncthreads();
  // By the shuffle the compiler knows that it is one number: addresses need no vector registers.
  const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128, 0) - 1;
  if (group < 0) {
    GiveRegisters<Tile::kLoading>();
    const HopperMaps maps = {&q_map, &k_map, &v_map};
    if (threadIdx.x == 0) {
      LoadBands(p, maps, state, tiles);
    } else if (threadIdx.x == 32) {
      LoadUnits(p, maps, state, tiles);
    } else if (threadIdx.x >= 64) {
      CleanBands<T>(state, tiles);
    }
  } else {
    TakeRegisters<Tile::kMultiplying>();
    AttendToBands<T>(p, &out_map, state, tiles, scale, group);
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
  CUtensorMap q, k, v, out;
  if (p.items > INT32_MAX / 2 ||
      !EncodeHeads(&q, *problem.q, Tile::kQueriesOfUnit, Tile::kHeadsOfUnit) ||
      !EncodeHeads(&out, *problem.out, Tile::kQueriesOfUnit) ||
      !EncodeHeads(&k, *problem.k, Tile::kBand) || !EncodeHeads(&v, *problem.v, Tile::kBand))
    return DeclineHopper(call);
  if (const int32_t status = AllowShared<kernel>(call, Tile::kSharedBytes)) return status;
  Limits limits;
  if (const int32_t status = ReadLimits(call, &limits)) return status;
  const int64_t blocks = std::min<int64_t>(p.items / p.group, limits.multiprocessors);
  const Launch launch = {dim3(static_cast<unsigned>(blocks)), dim3(Tile::kThreads),
                         Tile::kSharedBytes};
  return launch.Run(call, kernel, q, k, v, out, p, FactorsOf(p).scale);
}

}  // namespace
}  // namespace anyop::cuda
