// SPDX-License-Identifier: Apache-2.0
// Attention in float16 and bfloat16 on Hopper: one warpgroup that loads by TMA, and two or three of
// 64 queries each that multiply by wgmma.
//
// Blocks are persistent. Keys and values come in two stages each, from the last that a query of the
// tile sees to the first. Weights stay in registers, as the left side of their product with the
// values; the scores of the next keys are multiplied before it. The warpgroups take turns, so that
// one's exponentials run beside another's products. A row's maximum follows only where it has
// grown by a factor of 2^8: weights and their sum share it, so that nothing is lost. A row's bits
// depend on its own keys alone.
#pragma once

#include "anyop/cuda_hopper.h"
#include "attention_mma.h"

#ifndef V_QUERIES
#define V_QUERIES 2
#endif
#ifndef V_STAGES
#define V_STAGES 4
#endif
#ifndef V_TURNS
#define V_TURNS 1
#endif
#ifndef V_NEVER
#define V_NEVER 1
#endif
#ifndef V_KEEP
#define V_KEEP 128
#define V_KEEP2 192
#endif
#ifndef V_D64
#define V_D64 3
#endif
namespace anyop::cuda {
namespace {

template <int kKeyFeatures, int kValueFeatures, bool kCapped>
struct HopperTile {
  static constexpr int kD = kKeyFeatures, kE = kValueFeatures;
  static constexpr int kGroups = kD <= 64 && !kCapped ? V_D64 : 2;  // warpgroups that multiply
  static constexpr int kRows = 64 * kGroups, kKeys = kD <= 192 ? 128 : 64;
  static constexpr int kThreads = 128 * (kGroups + 1);
  static constexpr bool kKeepsQueries = kD == V_KEEP || kD == V_KEEP2;  // in registers
  static constexpr int kLoading = kGroups == 3 ? 32 : 24;  // registers of a thread
  static constexpr int kMultiplying = kGroups == 3 ? 160 : 240;
  static constexpr uint32_t kQueryPanel = kRows * 128, kKeyPanel = kKeys * 128;
  static constexpr uint32_t kQueryBytes = kD / 64 * kQueryPanel, kKeyBytes = kD / 64 * kKeyPanel;
  static constexpr uint32_t kValueBytes = kE / 64 * kKeyPanel;
  static constexpr uint32_t kStageBytes = kKeyBytes + kValueBytes;
  // Of what a multiprocessor has, less what is not dynamic: one tile of queries, or two, of which
  // one is read ahead; stages.
  static constexpr uint32_t kMost = 227 * 1024 - 2048;
  static constexpr int kQueries = 2 * (kQueryBytes + kStageBytes) <= kMost && V_QUERIES == 2 && !kKeepsQueries ? 2 : 1;
  static constexpr int kFitting = (kMost - kQueries * kQueryBytes) / kStageBytes;
  static constexpr int kStages = kFitting < V_STAGES ? kFitting : V_STAGES;
  static constexpr uint32_t kSharedBytes = kQueries * kQueryBytes + kStages * kStageBytes;
};

// A tile of queries of a head, told by the thread that loads; h < 0: there are no more.
struct HopperItem {
  int h, b, g;
  int q, k;  // rows of the tensors: the tile's first, the sequence's first key
  int top;   // the first query in its sequence
  int S, T, offset;
  int first, count;  // of the tiles of keys that a query sees
  int left, right;

  __device__ int First(int s) const { return Within(s + offset - left); }
  __device__ int End(int s) const { return Within(s + offset + right + 1); }
  __device__ int Last(int rows) const { return min(top + rows, S) - 1; }

 private:
  __device__ int Within(int t) const { return t < 0 ? 0 : t > T ? T : t; }
};

// The order of tiles. ahead > 0: of so many heads, whose keys and values the second cache holds,
// those of the last queries, which see most keys, come first; 0: head by head.
__device__ inline Place HopperPlace(const AttentionView& p, int item, int ahead) {
  int head = item / p.tiles, tile = item - head * p.tiles;
  if (ahead > 0) {
    const int heads = static_cast<int>(p.items / p.tiles), section = item / (ahead * p.tiles);
    const int in_section = item - section * ahead * p.tiles;
    const int count = heads - section * ahead < ahead ? heads - section * ahead : ahead;
    tile = p.tiles - 1 - in_section / count;
    head = section * ahead + in_section % count;
  }
  const int b = head / p.H;
  return {tile, head - b * p.H, b};
}

// False where there are no queries.
template <typename Tile>
__device__ bool FindItem(const AttentionView& p, int number, int ahead, HopperItem* item) {
  const Place place = HopperPlace(p, number, ahead);
  SequencePlace at = {0, p.S, 0, p.T, place.tile};
  if (p.cu_q) at = FindSequence(p, place.tile, Tile::kRows);
  if (!at.HasQueries(Tile::kRows)) return false;
  item->h = place.h, item->b = static_cast<int>(place.b), item->g = place.h / p.group;
  item->top = at.tile * Tile::kRows;
  item->q = at.first + item->top, item->k = at.key;
  item->S = at.end - at.first, item->T = at.keys;
  item->offset = p.cu_q ? item->T - item->S : p.offset;
  item->left = p.left, item->right = p.right;
  const int first = item->First(item->top) / Tile::kKeys, end = item->End(item->Last(Tile::kRows));
  item->first = first;
  item->count = end > item->First(item->top) ? (end + Tile::kKeys - 1) / Tile::kKeys - first : 0;
  return true;
}

template <int kQueries, int kStages>
struct HopperBarriers {
  uint64_t q_full[kQueries], q_empty[kQueries];
  uint64_t k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];
  uint64_t never;  // nobody arrives here
};

// Round `round` of this block's items, there and back, so that lengths even out: -1 behind the
// last, -2 where there is none in this round.
__device__ inline int ItemOfRound(int round, int items) {
  const int blocks = static_cast<int>(gridDim.x), block = static_cast<int>(blockIdx.x);
  const int item = round * blocks + (round & 1 ? blocks - 1 - block : block);
  return item < items ? item : round * blocks < items ? -2 : -1;
}

// Products of queries and keys to scores as multiples of ln 2: times scale; with a softcap by Cap.
struct HopperFactors {
  float scale, steep, cap, cap_twice;
};
inline HopperFactors FactorsOf(const AttentionView& view) {
  const double log2e = 1.44269504088896340736, cap = view.softcap;
  if (!(cap > 0)) return {static_cast<float>(view.scale * log2e), 0, 0, 0};
  return {1, static_cast<float>(view.scale * 2 * log2e / cap), static_cast<float>(cap * log2e),
          static_cast<float>(cap * 2 * log2e)};
}

// What a thread of a warpgroup has of its 64 queries: of rows `row` and row + 8.
template <typename T, typename Tile>
struct HopperRows {
  static constexpr Operand kType = kOperandOf<T>;
  float out[Tile::kE / 2], scores[Tile::kKeys / 2];
  uint32_t weights[Tile::kKeys / 4];
  uint32_t kept[Tile::kKeepsQueries ? Tile::kD / 4 : 1];  // queries, as a left side
  float max[2], sum[2], factor[2];

  // Scores of 64 queries, rows of panels of Tile::kRows, with a tile of keys.
  __device__ void Multiply(uint32_t q, uint32_t k) {
    FenceProducts();
#pragma unroll
    for (int i = 0; i < Tile::kD / 16; ++i) {
      const uint64_t k_tile = TileOf(k + i / 4 * Tile::kKeyPanel) + 2 * (i % 4);
      if constexpr (Tile::kKeepsQueries)
        Product<Tile::kKeys>::template AddRegisters<kType, 0>(scores, kept + 4 * i, k_tile, i);
      else
        Product<Tile::kKeys>::template Add<kType>(
            scores, TileOf(q + i / 4 * Tile::kQueryPanel) + 2 * (i % 4), k_tile, i);
    }
    CommitProducts();
  }
  __device__ void Keep(uint32_t q, int thread) {
    const uint32_t row = thread / 32 * 16 + thread % 16, half = thread % 32 / 16;
#pragma unroll
    for (int i = 0; i < Tile::kD / 16; ++i) {
      uint32_t four[4];
      LoadMatrices(four, q + i / 4 * Tile::kQueryPanel + Swizzled(row, i % 4 * 2 + half));
#pragma unroll
      for (int w = 0; w < 4; ++w) kept[4 * i + w] = four[w];
    }
  }
  __device__ void AddValues(uint32_t v, bool is_first) {
    FenceProducts();
#pragma unroll
    for (int i = 0; i < Tile::kKeys / 16; ++i)
      Product<Tile::kE>::template AddRegisters<kType, 1>(
          out, weights + 4 * i, PanelsOf(v + i * 2048, Tile::kKeyPanel), i > 0 || !is_first);
    CommitProducts();
  }
  // Products to scores as multiples of ln 2.
  __device__ void Cap(const HopperFactors& by) {
#pragma unroll
    for (float& score : scores)  // tanh(x) = 1 - 2 / (exp(2 x) + 1)
      score = MulAdd(by.cap_twice, -Reciprocal(PowerOfTwo(score * by.steep) + 1), by.cap);
  }
  // t: the key of the thread's first score; first, end: the keys that its rows see.
  __device__ void Hide(int t, int2 first, int2 end) {
#pragma unroll
    for (int i = 0; i < Tile::kKeys / 2; ++i) {
      const int key = t + i / 4 * 8 + i % 2;
      const bool is_seen = i / 2 % 2 ? key >= first.y && key < end.y : key >= first.x && key < end.x;
      if (!is_seen) scores[i] = -INFINITY;
    }
  }
  // Scores to weights, which are 2^(scale (score - max)); whether what was summed before is to be
  // multiplied by factor.
  template <bool kFirst>
  __device__ bool Weigh(float scale) {
    float most[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      most[r] = scores[2 * r];
#pragma unroll
      for (int i = 0; i < Tile::kKeys / 2; i += 4)
        most[r] = fmaxf(most[r], fmaxf(scores[i + 2 * r], scores[i + 2 * r + 1]));
      most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 1));
      most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 2));
    }
    bool grow[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      grow[r] = !kFirst && (most[r] - max[r]) * scale > 8;
      if (kFirst) max[r] = most[r], sum[r] = 0;
    }
    const bool grows = __any_sync(~0u, grow[0] || grow[1]);
    if (grows) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        factor[r] = grow[r] ? PowerOfTwo((max[r] - most[r]) * scale) : 1;
        max[r] = grow[r] ? most[r] : max[r];
        sum[r] *= factor[r];
      }
    }
    float base[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) base[r] = max[r] == -INFINITY ? 0 : max[r] * scale;
#pragma unroll
    for (int i = 0; i < Tile::kKeys / 2; ++i)
      scores[i] = PowerOfTwo(MulAdd(scores[i], scale, -base[i / 2 % 2]));
#pragma unroll
    for (int i = 0; i < Tile::kKeys / 2; ++i) sum[i / 2 % 2] += scores[i];
    return grows;
  }
  __device__ void Narrow() {
#pragma unroll
    for (int i = 0; i < Tile::kKeys / 4; ++i)
      weights[i] = NarrowTwo(T(), scores[2 * i], scores[2 * i + 1]);
  }
  __device__ void Grow() {
#pragma unroll
    for (int i = 0; i < Tile::kE / 2; ++i) out[i] *= factor[i / 2 % 2];
  }
  // Row `half` times share, in pieces of 16 bytes: of 32 columns a lane has those of its two in each
  // eight, and gets eight in a row from the four lanes of its row.
  __device__ void Write(T* to, int half, float share, int features) {
    const int lane = threadIdx.x % 4;
    const bool odd = lane & 1, high = lane & 2;
#pragma unroll
    for (int j = 0; j < Tile::kE / 32; ++j) {
      uint32_t w[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float* two = out + 16 * j + 4 * i + 2 * half;
        w[i] = share == 0 ? 0 : NarrowTwo(T(), two[0] * share, two[1] * share);
      }
      uint32_t a = __shfl_xor_sync(~0u, odd ? w[0] : w[1], 1);
      uint32_t b = __shfl_xor_sync(~0u, odd ? w[2] : w[3], 1);
      if (odd) {
        w[0] = a, w[2] = b;
      } else {
        w[1] = a, w[3] = b;
      }
      a = __shfl_xor_sync(~0u, high ? w[0] : w[2], 2);
      b = __shfl_xor_sync(~0u, high ? w[1] : w[3], 2);
      if (high) {
        w[0] = a, w[1] = b;
      } else {
        w[2] = a, w[3] = b;
      }
      const int column = 32 * j + 8 * lane;
      if (to && column < features)
        *reinterpret_cast<uint4*>(to + column) = make_uint4(w[0], w[1], w[2], w[3]);
    }
  }
};

// What CleanTile took away, added to the results of `rows` queries that see it, by 128 threads.
template <typename T>
__device__ void AddBadValuesOf(const AttentionView& p, const HopperItem& item, int row, int rows,
                               int thread, const bool* is_empty) {
  const T* v = static_cast<const T*>(p.v) + p.v_steps.At(item.b, item.g, item.k);
  for (int at = thread; at < rows * p.E; at += 128) {
    const int s = row + at / p.E, e = at % p.E;
    float bad = 0;
    for (int t = item.First(item.top + s); !is_empty[s] && t < item.End(item.top + s); ++t) {
      const float value = Widen(v[t * p.v_steps.row + e]);
      if (!isfinite(value)) bad += value;
    }
    T* to = static_cast<T*>(p.out) + p.out_steps.At(item.b, item.h, item.q + s) + e;
    if (!isfinite(bad)) *to = Narrow<T>(Widen(*to) + bad);
  }
}

template <typename T, int kD, int kE, bool kCapped>
__global__ __launch_bounds__(HopperTile<kD, kE, kCapped>::kThreads, 1) void AttendOnHopper(
    const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
    const __grid_constant__ CUtensorMap v_map, const __grid_constant__ AttentionView p,
    const __grid_constant__ HopperFactors by, const int ahead) {
  using Tile = HopperTile<kD, kE, kCapped>;
  constexpr int kGroups = Tile::kGroups;
  extern __shared__ __align__(1024) uint8_t shared[];
  __shared__ HopperBarriers<Tile::kQueries, Tile::kStages> barriers;
  __shared__ HopperItem told[Tile::kQueries + 1];
  __shared__ bool is_bad, is_empty[Tile::kRows];  // is_bad: CleanTile took something away
  const uint32_t queries = SharedAddress(shared);
  const uint32_t keys = queries + Tile::kQueries * Tile::kQueryBytes;
  const uint32_t values = keys + Tile::kStages * Tile::kKeyBytes;
  const uint32_t q_full = SharedAddress(barriers.q_full), never = SharedAddress(&barriers.never);
  const uint32_t q_empty = SharedAddress(barriers.q_empty);
  const uint32_t k_full = SharedAddress(barriers.k_full), v_full = SharedAddress(barriers.v_full);
  const uint32_t k_empty = SharedAddress(barriers.k_empty);
  const uint32_t v_empty = SharedAddress(barriers.v_empty);
  if (p.cu_q && (!AreInOrder<Tile::kThreads>(p.cu_q, p.sequences, p.S) ||
                 !AreInOrder<Tile::kThreads>(p.cu_k, p.sequences, p.T))) {
    for (int64_t item = blockIdx.x; item < p.items; item += gridDim.x)
      FillWithNan<T, Tile::kThreads>(p, HopperPlace(p, static_cast<int>(item), ahead), Tile::kRows);
    return;
  }
  if (threadIdx.x == 0) {
    is_bad = false;
    InitBarrier(never, 1);
    for (int i = 0; i < 8 * Tile::kQueries; i += 8)
      InitBarrier(q_full + i, 1), InitBarrier(q_empty + i, kGroups);
    for (int i = 0; i < 8 * Tile::kStages; i += 8) {
      InitBarrier(k_full + i, 1), InitBarrier(v_full + i, 1);
      InitBarrier(k_empty + i, kGroups), InitBarrier(v_empty + i, kGroups);
    }
    FenceBarriers();
    PrefetchMap(&q_map), PrefetchMap(&k_map), PrefetchMap(&v_map);
  }
  __syncthreads();
  const int items = static_cast<int>(p.items), group = static_cast<int>(threadIdx.x) / 128 - 1;
  RingPlace<Tile::kStages> at;  // of keys and values of one tile
  RingPlace<Tile::kQueries> q_at;
  RingPlace<Tile::kQueries + 1> told_at;  // so that what was told stays until the tile is written
  if (group < 0) {
    GiveRegisters<Tile::kLoading>();
    if (threadIdx.x > 0) return;
    for (int round = 0;; ++round) {
      const int number = ItemOfRound(round, items);
      HopperItem item;
      item.h = -1, item.count = 0;
      if (number == -2 || (number >= 0 && !FindItem<Tile>(p, number, ahead, &item))) continue;
      const uint32_t q = queries + q_at.stage * Tile::kQueryBytes, q_barrier = q_full + 8 * q_at.stage;
      const auto load_keys = [&](int j) {
        const uint32_t k = keys + at.stage * Tile::kKeyBytes, barrier = k_full + 8 * at.stage;
        WaitAt(k_empty + 8 * at.stage, at.parity ^ 1);
        ArriveForBytes(barrier, Tile::kKeyBytes);
#pragma unroll
        for (int i = 0; i < kD / 64; ++i)
          LoadBox(k + i * Tile::kKeyPanel, &k_map, barrier, 64 * i, item.k + j * Tile::kKeys,
                  item.g, item.b);
      };
      int j = item.first + item.count - 1;
      if (item.count > 0) load_keys(j);
      WaitAt(q_empty + 8 * q_at.stage, q_at.parity ^ 1);
      told[told_at.stage] = item;
      if (number < 0) {
        Arrive(q_barrier);
        break;
      }
      ArriveForBytes(q_barrier, Tile::kQueryBytes);
#pragma unroll
      for (int i = 0; i < kD / 64; ++i)
        LoadBox(q + i * Tile::kQueryPanel, &q_map, q_barrier, 64 * i, item.q, item.h, item.b);
      q_at.Next(), told_at.Next();
      for (; j >= item.first; at.Next()) {
        const uint32_t v = values + at.stage * Tile::kValueBytes, barrier = v_full + 8 * at.stage;
        WaitAt(v_empty + 8 * at.stage, at.parity ^ 1);
        ArriveForBytes(barrier, Tile::kValueBytes);
#pragma unroll
        for (int i = 0; i < kE / 64; ++i)
          LoadBox(v + i * Tile::kKeyPanel, &v_map, barrier, 64 * i, item.k + j * Tile::kKeys,
                  item.g, item.b);
        if (--j < item.first) continue;
        RingPlace<Tile::kStages> here = at;
        at.Next();
        load_keys(j);
        at = here;
      }
    }
  } else {
    TakeRegisters<Tile::kMultiplying>();
    const int thread = threadIdx.x % 128, lane = thread % 32;
    const int row = 64 * group + thread / 32 * 16 + lane / 4;
    const int mine = 1 + group, next = 1 + (group + 1) % kGroups, alone = 1 + kGroups + group;
    const float scale = kCapped ? 1 : by.scale;
    HopperRows<T, Tile> rows;
    const auto arrive = [&](uint32_t barrier) {
      if (thread == 0) Arrive(barrier);
    };
    if (V_TURNS && group == kGroups - 1) ArriveAtMeeting(1, 256);  // the first turn is warpgroup 0's
    for (;;) {
      WaitAt(q_full + 8 * q_at.stage, q_at.parity);
      const HopperItem& item = told[told_at.stage];
      if (item.h < 0) break;
      const uint32_t q = queries + q_at.stage * Tile::kQueryBytes + 64 * 128 * group;
      const uint32_t q_read = q_empty + 8 * q_at.stage;
      q_at.Next(), told_at.Next();
      const int first = item.first;
      if constexpr (Tile::kKeepsQueries) {
        rows.Keep(q, thread);
        MeetAt(alone, 128);
        arrive(q_read);
      }
      const int all_first = item.First(item.Last(Tile::kRows)), all_end = item.End(item.top);
      const auto is_cut = [&](int j) {  // not all queries see all its keys
        return j * Tile::kKeys < all_first || (j + 1) * Tile::kKeys > all_end;
      };
      const auto set_scores = [&](int j) {
        if constexpr (kCapped) rows.Cap(by);
        if (!is_cut(j)) return;
        const int s = item.top + row;
        rows.Hide(j * Tile::kKeys + lane % 4 * 2, {item.First(s), item.First(s + 8)},
                  {item.End(s), item.End(s + 8)});
      };
      const auto clean = [&](int j, const RingPlace<Tile::kStages>& place) {
        if (!is_cut(j)) return;
        WaitAt(v_full + 8 * place.stage, place.parity);
        CleanTile<Tile::kKeys, kE, T>(values + place.stage * Tile::kValueBytes, thread,
                                      item.T - j * Tile::kKeys, &is_bad);
        FenceForTma();
        MeetAt(alone, 128);
      };
      if (item.count > 0) {
        int j = first + item.count - 1;
        WaitAt(k_full + 8 * at.stage, at.parity);
        if (V_TURNS) MeetAt(mine, 256);
        rows.Multiply(q, keys + at.stage * Tile::kKeyBytes);
        if (V_TURNS) ArriveAtMeeting(next, 256);
        WaitForProducts<0>();
        Pin(rows.scores);
        arrive(k_empty + 8 * at.stage);
        set_scores(j);
        rows.template Weigh<true>(scale);
        rows.Narrow();
        RingPlace<Tile::kStages> before = at;
        at.Next();
        bool is_first = true;
        for (; j > first; is_first = false) {
          clean(j, before);
          --j;
          WaitAt(k_full + 8 * at.stage, at.parity);
          if (V_TURNS) MeetAt(mine, 256);
          rows.Multiply(q, keys + at.stage * Tile::kKeyBytes);
          WaitAt(v_full + 8 * before.stage, before.parity);
          rows.AddValues(values + before.stage * Tile::kValueBytes, is_first);
          if (V_TURNS) ArriveAtMeeting(next, 256);
          WaitForProducts<1>();
          Pin(rows.scores);
          arrive(k_empty + 8 * at.stage);
          set_scores(j);
          const bool grows = rows.template Weigh<false>(scale);
          Pin(rows.scores);
          if (V_NEVER) WaitAt(never, 1);  // has ended; a branch, over which ptxas moves no wait for products
          WaitForProducts<0>();
          Pin(rows.out);
          arrive(v_empty + 8 * before.stage);
          rows.Narrow();
          if (grows) rows.Grow();
          before = at;
          at.Next();
        }
        if (!Tile::kKeepsQueries) arrive(q_read);
        clean(j, before);
        WaitAt(v_full + 8 * before.stage, before.parity);
        rows.AddValues(values + before.stage * Tile::kValueBytes, is_first);
        WaitForProducts<0>();
        Pin(rows.out);
        arrive(v_empty + 8 * before.stage);
      } else {
        MeetAt(alone, 128);  // all have read what was told
        if (!Tile::kKeepsQueries) arrive(q_read);
        rows.max[0] = rows.max[1] = -INFINITY;
        rows.sum[0] = rows.sum[1] = 0;
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float total = rows.sum[half];
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        const RowEnd<float> done = EndRow(p, item.h, rows.max[half] * scale, total);
        const bool is_there = item.top + row + 8 * half < item.S;
        const int to = item.q + row + 8 * half;
        if (lane % 4 == 0) is_empty[row + 8 * half] = total == 0;
        if (p.lse && lane % 4 == 0 && is_there)
          p.lse[p.lse_steps.At(item.b, item.h, to)] = LogOf(done);
        T* out = static_cast<T*>(p.out) + (is_there ? p.out_steps.At(item.b, item.h, to) : 0);
        rows.Write(is_there ? out : nullptr, half, total == 0 ? 0 : done.share, p.E);
      }
      MeetAt(alone, 128);
      if (is_bad) {
        const int left = item.S - item.top - 64 * group;
        AddBadValuesOf<T>(p, item, 64 * group, min(left, 64), thread, is_empty);
        MeetAt(alone, 128);
      }
    }
  }
}

// ---- host ----

// Whether TMA can read x, (B, H, S, D), in boxes of so many rows.
inline bool EncodeHeads(CUtensorMap* map, const AnyopTensor& x, int box_rows) {
  const auto step = [&](int d) { return x.shape[d] > 1 ? 2 * x.strides[d] : 16; };
  for (int d = 0; d < 3; ++d)
    if (step(d) <= 0) return false;
  const CUtensorMapDataType type = AnyopDtypeOf(&x) == kAnyopFloat16
                                       ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                       : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return EncodeMap(map, {x.data, x.shape[2], x.shape[3], step(2), type, 2, box_rows, 4, x.shape[1],
                         step(1), x.shape[0], step(0)});
}

inline int32_t DeclineHopper(AnyopCall* call) {
  return call->fail(call, kAnyopDeclined,
                    "it takes neither mask nor slopes, a scale above 0, keys, and rows that are "
                    "multiples of 16 bytes");
}

// problem: what maps are made of; view: of kRows queries a tile.
template <typename T, int kD, int kE, bool kCapped>
int32_t RunOnHopper(const AttentionProblem& problem, const AttentionView& view, AnyopCall* call) {
  using Tile = HopperTile<kD, kE, kCapped>;
  constexpr auto kernel = AttendOnHopper<T, kD, kE, kCapped>;
  CUtensorMap q, k, v;
  if (view.items > INT32_MAX / 2 || !EncodeHeads(&q, *problem.q, Tile::kRows) ||
      !EncodeHeads(&k, *problem.k, Tile::kKeys) || !EncodeHeads(&v, *problem.v, Tile::kKeys))
    return DeclineHopper(call);
  if (const int32_t status = AllowShared<kernel>(call, Tile::kSharedBytes)) return status;
  Limits limits;
  if (const int32_t status = ReadLimits(call, &limits)) return status;
  // Tiles differ under a causal bound: the longest of as many heads as the second cache holds the
  // keys and values of (32 MiB) come first. Packed sequences come tile by tile of all heads.
  const bool differ = view.cu_q || view.right < view.T;
  const int64_t bytes = int64_t{2} * view.T * (view.D + view.E);
  const int64_t heads = view.cu_q ? view.H : std::max<int64_t>(1, (32 << 20) / bytes) * view.group;
  const int ahead = differ ? static_cast<int>(std::min(heads, view.items / view.tiles)) : 0;
  const int64_t blocks = std::min<int64_t>(view.items, limits.multiprocessors);
  const Launch launch = {dim3(static_cast<unsigned>(blocks)), dim3(Tile::kThreads),
                         Tile::kSharedBytes};
  return launch.Run(call, kernel, q, k, v, view, FactorsOf(view), ahead);
}

}  // namespace
}  // namespace anyop::cuda
