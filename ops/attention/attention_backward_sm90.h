// SPDX-License-Identifier: Apache-2.0
// Gradients of attention in float16 and bfloat16 on Hopper: a warpgroup that loads by TMA and adds
// up grad_q, and two of 64 keys each that multiply by wgmma.
//
// Blocks are persistent and draw items: a tile of 128 keys, over the tiles of 64 queries that see
// one of them, of some heads of the group. Scores and gradients of weights are made with keys as
// rows, so that weights and slopes are in registers as the left sides of their products for grad_v
// and grad_k, which stay there. Slopes go to shared memory once, for grad_q: each warpgroup makes
// half of its columns. Two threads in turns have the copy engine add them up in memory, in float32,
// when it is this tile's turn: the order is fixed, so that the bits are the same each time.
#pragma once

#include "attention_backward_sm90_ends.h"
#include "attention_backward_sm90_rows.h"

namespace anyop::cuda {
namespace {

template <typename Tile>
struct HopperGradientShared {
  uint64_t k_full, k_empty, v_full, v_empty;
  uint64_t q_full[Tile::kStages], q_empty[Tile::kStages];
  uint64_t grad_full[Tile::kStages], grad_empty[Tile::kStages];
  uint64_t sum_full[Tile::kBuffers], sum_empty[Tile::kBuffers];
  uint64_t told[2], read[2], loaded;  // items
  HopperGradientItem items[2];
  uint8_t is_bad[Tile::kKeys];  // keys that are not finite

  __device__ void Init() {
    const auto init = [](uint64_t& barrier, uint32_t count) {
      InitBarrier(SharedAddress(&barrier), count);
    };
    init(loaded, 1), init(k_full, 1), init(k_empty, 2), init(v_full, 1), init(v_empty, 2);
    for (int i = 0; i < Tile::kStages; ++i) {
      init(q_full[i], 1), init(q_empty[i], 2);
      init(grad_full[i], 1), init(grad_empty[i], 2);
    }
    for (int i = 0; i < Tile::kBuffers; ++i) init(sum_full[i], 8), init(sum_empty[i], 1);
    for (int i = 0; i < 2; ++i) init(told[i], 1), init(read[i], 3 + Tile::kBuffers);
    FenceBarriers();
  }
  // Item `round` of this block, when it is told.
  __device__ __forceinline__ const HopperGradientItem& Wait(int round) {
    WaitAt(SharedAddress(told + round % 2), round / 2 % 2);
    return items[round % 2];
  }
  __device__ void EndRead(int round) { Arrive(SharedAddress(read + round % 2)); }
};
struct HopperGradientMaps {
  CUtensorMap q, k, v, grad;
};

// One thread: draws items, each when the one before is loaded, since others wait for what is drawn.
template <typename Tile>
__device__ void DrawItems(const GradientView& p, const HopperGradientMemory& m,
                          const HopperGradientOrder& order, HopperGradientShared<Tile>* shared) {
  for (int round = 0;;) {
    HopperGradientItem& item = shared->items[round % 2];
    WaitAt(SharedAddress(shared->read + round % 2), round / 2 % 2 ^ 1);
    WaitAt(SharedAddress(&shared->loaded), round % 2 ^ 1);
    const int draw = atomicAdd(m.next, 1);
    const bool is_last = draw >= order.items;
    if (is_last) item.count = -1;
    if (!is_last && !FindGradientItem<Tile>(p, order, draw, &item)) continue;
    Arrive(SharedAddress(shared->told + round % 2));
    if (is_last) return;
    ++round;
  }
}

// One thread: loads keys, values and all tiles of queries.
template <typename Tile>
struct HopperGradientLoader {
  const HopperGradientMaps& maps;
  const GradientView& p;
  const HopperGradientMemory& m;
  HopperGradientShared<Tile>* shared;
  uint32_t tiles;
  RingPlace<Tile::kStages> at;

  __device__ void Run() {
    for (int round = 0;; ++round) {
      const HopperGradientItem& item = shared->Wait(round);
      if (item.count < 0) return;
      Load(item, round % 2);
      Arrive(SharedAddress(&shared->loaded));
      shared->EndRead(round);
    }
  }
  __device__ void Load(const HopperGradientItem& item, uint32_t parity) {
    const GradientPlace& place = item.place;
    const int b = static_cast<int>(place.b), top = place.at.k + place.tile * Tile::kKeys;
    WaitAt(SharedAddress(&shared->k_empty), parity ^ 1);
    LoadPanels<Tile::kD, Tile::kKeyPanel>(tiles, maps.k, &shared->k_full, top, place.h, b, 0);
    WaitAt(SharedAddress(&shared->v_empty), parity ^ 1);
    LoadPanels<Tile::kE, Tile::kKeyPanel>(tiles + Tile::kKeyBytes, maps.v, &shared->v_full, top,
                                          place.h, b, 0);
    int i = item.first, h = item.h;
    int tile = item.q_tiles + i;
    for (int n = 0; n < item.count; ++n, at.Next()) {
      const int s = place.at.q + i * Tile::kQueries;
      WaitAt(SharedAddress(shared->q_empty + at.stage), at.parity ^ 1);
      LoadPanels<Tile::kD, Tile::kQueryPanel>(
          tiles + Tile::kQueriesAt + at.stage * Tile::kQueryBytes, maps.q,
          shared->q_full + at.stage, s, h, b, Tile::kNumberBytes);
      LoadBytes(tiles + Tile::kBasesAt + at.stage * Tile::kNumberBytes,
                m.bases + int64_t{tile} * Tile::kQueries, SharedAddress(shared->q_full + at.stage),
                Tile::kNumberBytes);
      WaitAt(SharedAddress(shared->grad_empty + at.stage), at.parity ^ 1);
      LoadPanels<Tile::kE, Tile::kQueryPanel>(tiles + Tile::kGradsAt + at.stage * Tile::kGradBytes,
                                              maps.grad, shared->grad_full + at.stage, s, h, b,
                                              Tile::kNumberBytes);
      LoadBytes(tiles + Tile::kDeltasAt + at.stage * Tile::kNumberBytes,
                m.deltas + int64_t{tile} * Tile::kQueries,
                SharedAddress(shared->grad_full + at.stage), Tile::kNumberBytes);
      ++i, ++tile;
      if (i == item.first + item.each) i = item.first, ++h, tile += p.a.tiles - item.each;
    }
  }
  // more: bytes that come to the barrier besides.
  template <int kFeatures, uint32_t kPanel>
  __device__ static void LoadPanels(uint32_t to, const CUtensorMap& map, uint64_t* barrier, int row,
                                    int h, int b, uint32_t more) {
    const uint32_t full = SharedAddress(barrier);
    ArriveForBytes(full, kFeatures / 64 * kPanel + more);
#pragma unroll
    for (int i = 0; i < kFeatures / 64; ++i)
      LoadBox(to + i * kPanel, &map, full, 64 * i, row, h, b);
  }
};

// One thread of kBuffers: sums for grad_q in its buffer, each at its turn.
template <typename Tile>
__device__ void AddGradientTiles(const GradientView& p, const HopperGradientMemory& m,
                                 HopperGradientShared<Tile>* shared, uint32_t tiles, int buffer) {
  const uint32_t from = tiles + Tile::kSumsAt + buffer * Tile::kSumBytes;
  const uint32_t full = SharedAddress(shared->sum_full + buffer);
  const uint32_t empty = SharedAddress(shared->sum_empty + buffer);
  int n = 0;  // of all items
  for (int round = 0;; ++round) {
    const HopperGradientItem& item = shared->Wait(round);
    const int count = item.count, end = n + count;
    if (count < 0) return;
    int i = item.first;
    int tile = item.q_tiles + i;
    for (; n < end; ++n) {
      if (n % Tile::kBuffers == buffer) {
        WaitAt(full, n / Tile::kBuffers % 2);
        if (p.grad_q) {
          const int turn = item.TurnAt<Tile>(i);
          float* to = m.sums + int64_t{tile} * Tile::kQueries * Tile::kD;
          if (turn == 0) {
            StoreBytes(to, from, Tile::kSumBytes);
          } else {
            WaitForTurn(m.turns + tile, turn);
            AddFloats(to, from, Tile::kSumBytes);
          }
          CommitStores();
          WaitForWrites();
          PassTurn(m.turns + tile, turn + 1);
        }
        Arrive(empty);
      }
      ++i, ++tile;
      if (i == item.first + item.each) i = item.first, tile += p.a.tiles - item.each;
    }
    shared->EndRead(round);
  }
}

// A warpgroup of two.
template <typename T, typename Tile>
struct HopperGradientGroup {
  const GradientView& p;
  const HopperFactors& by;
  HopperGradientShared<Tile>* shared;
  uint32_t tiles;
  int n, group;  // n: tiles of queries of all items

  __device__ void Arrive(uint64_t& barrier) const {
    if (threadIdx.x % 128 == 0) cuda::Arrive(SharedAddress(&barrier));
  }
  __device__ int thread() const { return ComputedHere(threadIdx.x) % 128; }
  __device__ int row() const { return 64 * group + thread() / 32 * 16 + thread() % 32 / 4; }
  // Of queries behind a sequence's end lie those of another in the tile, whatever they hold.
  __device__ void ClearBehind(const HopperGradientItem& item, uint32_t to, int panels, int i) {
    if (!p.a.cu_q) return;
    const int left = item.place.at.S - i * Tile::kQueries;
    if (left >= Tile::kQueries) return;
    MeetAt(1, 256);
    ClearQueries<Tile>(to, panels, left, thread() + 128 * group);
    FenceForTma();
    MeetAt(1, 256);
  }
  __device__ void WaitForQueries(const HopperGradientItem& item, int n, int i) {
    const int stage = n % Tile::kStages;
    WaitAt(SharedAddress(shared->q_full + stage), n / Tile::kStages % 2);
    ClearBehind(item, tiles + Tile::kQueriesAt + stage * Tile::kQueryBytes, Tile::kD / 64, i);
  }
  __device__ void Score(HopperKeyRows<T, Tile>& rows, int n) {
    rows.template Multiply<Tile::kD>(
        rows.scores, tiles + 64 * 128 * group,
        tiles + Tile::kQueriesAt + n % Tile::kStages * Tile::kQueryBytes);
  }
  __device__ void Weigh(HopperKeyRows<T, Tile>& rows, const HopperGradientItem& item, int stage,
                        int i, bool is_cut, bool has_bad) {
    const int lane = thread() % 32;
    if (has_bad) {
#pragma unroll
      for (int c = 0; c < rows.kPairs; ++c)
        if (shared->is_bad[row() + c / 2 % 2 * 8]) rows.scores[c] = NAN;
    }
    rows.Weigh(by, tiles + Tile::kBasesAt + stage * Tile::kNumberBytes + lane % 4 * 8);
    if (!is_cut) return;
    const GradientRange& at = item.place.at;
    const int t = item.place.tile * Tile::kKeys + row();
    rows.Hide(i * Tile::kQueries + lane % 4 * 2, {at.FirstQuery(t), at.FirstQuery(t + 8)},
              {t < at.T ? at.EndQuery(t) : 0, t + 8 < at.T ? at.EndQuery(t + 8) : 0});
  }
  // All tiles of queries of an item that has some.
  __device__ __forceinline__ void Grade(HopperKeyRows<T, Tile>& rows,
                                        const HopperGradientItem& item, bool has_bad) {
    int i = item.first;
    const int end = n + item.count;
    const uint32_t values = tiles + Tile::kKeyBytes + 64 * 128 * group;
    WaitForQueries(item, n, i);
    if constexpr (Tile::kIsAhead) {
      Score(rows, n);
      WaitForProducts<0>();
      Pin(rows.scores);
    }
#pragma unroll 1
    do {
      const int stage = n % Tile::kStages, buffer = n % Tile::kBuffers;
      const uint32_t queries = tiles + Tile::kQueriesAt + stage * Tile::kQueryBytes;
      const uint32_t grads = tiles + Tile::kGradsAt + stage * Tile::kGradBytes;
      const uint32_t slopes = tiles + Tile::kSlopesAt + buffer * Tile::kSlopeBytes;
      const bool is_cut = item.IsCut<Tile>(i);
      if constexpr (Tile::kIsWide) {
        Score(rows, n);
        WaitForProducts<0>();
        Pin(rows.scores);
        Weigh(rows, item, stage, i, is_cut, has_bad);
        WaitAt(SharedAddress(shared->grad_full + stage), n / Tile::kStages % 2);
        ClearBehind(item, grads, Tile::kE / 64, i);
        rows.template Multiply<Tile::kE>(rows.grads, values, grads);
      } else {
        if constexpr (!Tile::kIsAhead) Score(rows, n);
        WaitAt(SharedAddress(shared->grad_full + stage), n / Tile::kStages % 2);
        ClearBehind(item, grads, Tile::kE / 64, i);
        rows.template Multiply<Tile::kE>(rows.grads, values, grads);
        if constexpr (!Tile::kIsAhead) {
          WaitForProducts<1>();
          Pin(rows.scores);
        }
        Weigh(rows, item, stage, i, is_cut, has_bad);
      }
      rows.AddValues(grads);
      WaitForProducts<1>();
      Pin(rows.grads);
      const uint32_t deltas = tiles + Tile::kDeltasAt + stage * Tile::kNumberBytes;
      if (is_cut) {
        rows.template Slope<true>(deltas + thread() % 4 * 8);
      } else {
        rows.template Slope<false>(deltas + thread() % 4 * 8);
      }
      rows.AddKeys(queries);
      if (Tile::kBuffers == 1) MeetAt(2, 256);  // both have read the slopes before
      rows.StoreSlopes(slopes, group, thread());
      FenceForTma();
      MeetAt(1, 256);
      WaitForProducts<Tile::kIsWide ? 0 : 1>();
      Pin(rows.v);
      Arrive(shared->grad_empty[stage]);
      rows.GradeQueries(slopes, tiles, group);
      if (++i == item.first + item.each) i = item.first;
      if (n + 1 < end) WaitForQueries(item, n + 1, i);
      if constexpr (Tile::kIsAhead) {
        Score(rows, n + 1);  // behind the last tile of what lies there
        WaitForProducts<1>();
      } else {
        WaitForProducts<0>();
      }
      rows.PinKeys(), rows.PinQueries();
      Arrive(shared->q_empty[stage]);
      WaitAt(SharedAddress(shared->sum_empty + buffer), n / Tile::kBuffers % 2 ^ 1);
      rows.StoreQueries(tiles + Tile::kSumsAt + buffer * Tile::kSumBytes, group, thread());
      FenceForTma();
      __syncwarp();
      if (thread() % 32 == 0) cuda::Arrive(SharedAddress(shared->sum_full + buffer));
      if constexpr (Tile::kIsAhead) {
        WaitForProducts<0>();
        Pin(rows.scores);
      }
    } while (++n < end);
  }
  __device__ __forceinline__ void Run(const HopperGradientMemory& m, int parts) {
    HopperKeyRows<T, Tile> rows;
#pragma unroll 1
    for (int round = 0;; ++round) {
      const HopperGradientItem& item = shared->Wait(round);
      if (item.count < 0) return;
      const auto left = [&] {
        return m.parts + int64_t{ComputedHere(item.number)} * Tile::kKeys * (Tile::kD + Tile::kE);
      };
      if (item.part > 0) {
        if (thread() == 0) WaitForTurn(m.done + item.number, item.part);
        MeetAt(3 + group, 128);
        rows.Begin(left());
      } else {
        rows.Clear();
      }
      WaitAt(SharedAddress(&shared->k_full), round % 2);
      const bool has_bad = CleanKeys<T, Tile>(tiles, thread() + 128 * group, shared->is_bad);
      WaitAt(SharedAddress(&shared->v_full), round % 2);
      if (item.count > 0) Grade(rows, item, has_bad);
      Arrive(shared->k_empty), Arrive(shared->v_empty);
      if (item.part + 1 < parts) {
        rows.Leave(left());
        MeetAt(1, 256);
        if (group == 0 && thread() == 0) PassTurn(m.done + item.number, item.part + 1);
      } else {
        rows.WriteKeys(p, item.place, row());
      }
      MeetAt(3 + group, 128);
      Arrive(shared->read[round % 2]);
    }
  }
};

template <typename T, int kD, int kE, bool kCapped>
__global__ __launch_bounds__(384, 1) void GradeOnHopper(
    const __grid_constant__ HopperGradientMaps maps, const __grid_constant__ GradientView p,
    const __grid_constant__ HopperFactors by, const __grid_constant__ HopperGradientMemory m,
    const __grid_constant__ HopperGradientOrder order) {
  using Tile = HopperGradientTile<kD, kE, kCapped>;
  extern __shared__ __align__(1024) uint8_t dynamic[];
  __shared__ HopperGradientShared<Tile> shared;
  const uint32_t tiles = SharedAddress(dynamic);
  WaitForWork();
  LetNextStart();
  if (p.a.cu_q && !HasOrder<true, Tile::kThreads>(p.a)) {
    for (int64_t item = blockIdx.x; item < p.key_items; item += gridDim.x)
      FillKeysWithNan<T>(p, item, Tile::kKeys);
    return;
  }
  if (threadIdx.x == 0) {
    shared.Init();
    PrefetchMap(&maps.q), PrefetchMap(&maps.k), PrefetchMap(&maps.v), PrefetchMap(&maps.grad);
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    GiveRegisters<24>();
    const int warp = static_cast<int>(threadIdx.x) / 32;
    if (threadIdx.x % 32 > 0) return;
    if (warp == 0) HopperGradientLoader<Tile>{maps, p, m, &shared, tiles, {}}.Run();
    if (warp == 3) DrawItems<Tile>(p, m, order, &shared);
    if (warp > 0 && warp <= Tile::kBuffers) AddGradientTiles<Tile>(p, m, &shared, tiles, warp - 1);
  } else {
    TakeRegisters<240>();
    const int group = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 128 - 1, 0);
    HopperGradientGroup<T, Tile>{p, by, &shared, tiles, 0, group}.Run(m, order.parts);
  }
}

}  // namespace
}  // namespace anyop::cuda
