// SPDX-License-Identifier: Apache-2.0
// Attention in float16 and bfloat16 on Hopper: one warpgroup that loads by TMA, and two or three of
// 64 queries each that multiply by wgmma.
//
// Blocks are persistent. Keys and values come in up to four stages each, from the last that a query
// of the tile sees to the first. Weights stay in registers, as the left side of their product with
// the values; the scores of the next keys are multiplied before it. The warpgroups take turns, so
// that one's exponentials run beside another's products. A row's maximum follows only where it has
// grown by a factor of 2^8: weights and their sum share it, so that nothing is lost. A row's bits
// depend on its own keys alone.
#pragma once

#include <type_traits>

#include "attention_sm90_load.h"
#include "attention_sm90_rows.h"

namespace anyop::cuda {
namespace {

template <typename T, int kD, int kE, bool kCapped>
__global__ __launch_bounds__(HopperTile<kD, kE, kCapped>::kThreads, 1) void AttendOnHopper(
    const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
    const __grid_constant__ CUtensorMap v_map, const __grid_constant__ AttentionView p,
    const __grid_constant__ HopperFactors by, const int ahead) {
  using Tile = HopperTile<kD, kE, kCapped>;
  constexpr int kGroups = Tile::kGroups;
  uint8_t* const shared = SharedTiles();
  __shared__ BarriersOf<Tile> barriers;
  __shared__ HopperItem told[Tile::kQueries + 1];
  __shared__ bool is_bad, is_empty[Tile::kRows];  // is_bad: CleanTile took something away
  // Once: at each use the compiler would ask anew where shared memory begins.
  const uint32_t queries = ComputedHere(SharedAddress(shared));
  const uint32_t keys = queries + Tile::kQueries * Tile::kQueryBytes;
  const uint32_t values = keys + Tile::kStages * Tile::kKeyBytes;
  using Barriers = BarriersOf<Tile>;
  const uint32_t q_full = ComputedHere(SharedAddress(&barriers));
  const uint32_t q_empty = q_full + offsetof(Barriers, q_empty);
  const uint32_t k_full = q_full + offsetof(Barriers, k_full);
  const uint32_t k_empty = q_full + offsetof(Barriers, k_empty);
  const uint32_t v_full = q_full + offsetof(Barriers, v_full);
  const uint32_t v_empty = q_full + offsetof(Barriers, v_empty);
  if (p.cu_q && (!AreInOrder<Tile::kThreads>(p.cu_q, p.sequences, p.S) ||
                 (p.cu_k && !AreInOrder<Tile::kThreads>(p.cu_k, p.sequences, p.T)))) {
    for (int64_t item = blockIdx.x; item < p.items; item += gridDim.x)
      FillWithNan<T, Tile::kThreads>(p, HopperPlace(p, p.tiles, static_cast<int>(item), ahead),
                                     Tile::kRows);
    return;
  }
  if (threadIdx.x == 0) {
    is_bad = false;
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
  // By shuffles the compiler knows that all lanes have one number, so that wgmma's operands are
  // computed in uniform registers.
  const auto same = [](auto number) { return __shfl_sync(~0u, number, 0); };
  const int group = same(static_cast<int>(threadIdx.x) / 128) - 1;
  if (group < 0) {
    GiveRegisters<Tile::kLoading>();
    const HopperMaps maps = {&q_map, &k_map, &v_map};
    const int warp = same(static_cast<int>(threadIdx.x) / 32);
    if (!p.table) {
      if (threadIdx.x == 0) LoadRows<Tile>(p, maps, SharedAddress(shared), barriers, told, ahead);
    } else if (warp == 0) {
      LoadPages<Tile, false>(p, maps, SharedAddress(shared), barriers, told, ahead);
    } else if (warp == 1) {
      LoadPages<Tile, true>(p, maps, SharedAddress(shared), barriers, told, ahead);
    }
  } else {
    TakeRegisters<Tile::kMultiplying>();
    RingPlace<Tile::kStages> at;
    RingPlace<Tile::kQueries> q_at;
    RingPlace<Tile::kQueries + 1> told_at;
    const int thread = threadIdx.x % 128, lane = thread % 32;
    const int row = 64 * group + thread / 32 * 16 + lane / 4;
    const int mine = 1 + group, next = 1 + (group + 1) % kGroups, alone = 1 + kGroups + group;
    const float scale = kCapped ? 1 : by.scale;
    HopperRows<T, Tile> rows;
    const auto arrive = [&](uint32_t barrier) {
      if (thread == 0) Arrive(barrier);
    };
    if (group == kGroups - 1) ArriveAtMeeting(1, 256);  // the first turn is warpgroup 0's
    for (;;) {
      WaitAt(q_full + 8 * q_at.stage, q_at.parity);
      const HopperItem& item = told[told_at.stage];
      if (item.h < 0) break;
      const uint32_t q = queries + q_at.stage * Tile::kQueryBytes + 64 * 128 * group;
      if constexpr (Tile::kKeepsQueries) {
        rows.Keep(q, thread);
        MeetAt(alone, 128);
        arrive(q_empty + 8 * q_at.stage);
      }
      const int whole_first = item.whole_first, whole_end = item.whole_end;
      const auto is_cut = [&](int j) { return j < whole_first || j >= whole_end; };
      const auto hide = [&](int j) {
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
      // Tiles of which these 64 queries see no key are passed on, in their turn.
      const auto pass = [&] {
        WaitAt(k_full + 8 * at.stage, at.parity);
        MeetAt(mine, 256);
        ArriveAtMeeting(next, 256);
        arrive(k_empty + 8 * at.stage);
        WaitAt(v_full + 8 * at.stage, at.parity);
        arrive(v_empty + 8 * at.stage);
        at.Next();
      };
      const int my_first = item.firsts[group];
      int j = item.first + item.count - 1;
      for (; j > item.lasts[group]; --j) pass();
      if (j >= my_first) {
        WaitAt(k_full + 8 * at.stage, at.parity);
        MeetAt(mine, 256);
        rows.Multiply(q, keys + at.stage * Tile::kKeyBytes);
        ArriveAtMeeting(next, 256);
        WaitForProducts<0>();
        Pin(rows.scores);
        arrive(k_empty + 8 * at.stage);
        if constexpr (kCapped) rows.Cap(by);
        hide(j);
        rows.template Weigh<true>(scale);
        rows.Narrow();
        RingPlace<Tile::kStages> before = at;
        at.Next();
        // Of the next round; asked for beside other work, so that they are there when needed.
        bool is_first = true, has_keys = false, has_values = false;
        uint32_t k = same(keys + at.stage * Tile::kKeyBytes);
        uint32_t v = same(values + before.stage * Tile::kValueBytes);
        // may_be_cut: the tile before, or this. Where most rounds are, nothing is jumped over.
        const auto round = [&](auto may_be_cut) {
          if constexpr (may_be_cut.value) clean(j, before);
          --j;
          if (!has_keys) WaitAt(k_full + 8 * at.stage, at.parity);
          if (!has_values) WaitAt(v_full + 8 * before.stage, before.parity);
          MeetAt(mine, 256);
          rows.Multiply(q, k);
          rows.AddValues(v, is_first);
          ArriveAtMeeting(next, 256);
          WaitForProducts<1>();
          Pin(rows.scores);
          arrive(k_empty + 8 * at.stage);
          if constexpr (kCapped) rows.Cap(by);
          if constexpr (may_be_cut.value) hide(j);
          const RingPlace<Tile::kStages> behind = at.Behind();
          has_keys = HasEnded(k_full + 8 * behind.stage, behind.parity);
          has_values = HasEnded(v_full + 8 * at.stage, at.parity);
          k = same(keys + behind.stage * Tile::kKeyBytes);
          v = same(values + at.stage * Tile::kValueBytes);
          const bool grows = rows.template Weigh<false>(scale);
          WaitForProducts<0>();
          Pin(rows.out);
          arrive(v_empty + 8 * before.stage);
          rows.Narrow();
          if (grows) rows.Grow();
          before = at;
          at.Next();
          is_first = false;
        };
        const int whole_last = max(my_first, whole_first);
        while (j > my_first) {
          if (j >= whole_end || j <= whole_first) round(std::true_type());
          while (j > whole_last && j < whole_end) round(std::false_type());
        }
        if (!Tile::kKeepsQueries) arrive(q_empty + 8 * q_at.stage);
        clean(j, before);
        WaitAt(v_full + 8 * before.stage, before.parity);
        rows.AddValues(values + before.stage * Tile::kValueBytes, is_first);
        WaitForProducts<0>();
        Pin(rows.out);
        arrive(v_empty + 8 * before.stage);
        --j;
      } else {
        MeetAt(alone, 128);  // all have read what was told
        if (!Tile::kKeepsQueries) arrive(q_empty + 8 * q_at.stage);
        rows.max[0] = rows.max[1] = -INFINITY;
        rows.sum[0] = rows.sum[1] = 0;
      }
      for (; j >= item.first; --j) pass();
      const int to = item.q + row, left = item.S - item.top - row;
      T* out = static_cast<T*>(p.out) + p.out_steps.At(item.b, item.h, to);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float total = rows.sum[half];
        total += __shfl_xor_sync(~0u, total, 1);
        total += __shfl_xor_sync(~0u, total, 2);
        const float wrong = item.is_wrong ? NAN : 0;
        total += wrong;
        const RowEnd<float> done = EndRow(p, item.h, rows.max[half] * scale + wrong, total);
        const bool is_there = 8 * half < left;
        if (lane % 4 == 0) is_empty[row + 8 * half] = total == 0;
        if (p.lse && lane % 4 == 0 && is_there)
          p.lse[p.lse_steps.At(item.b, item.h, to + 8 * half)] = LogOf(done);
        rows.Write(is_there ? out : nullptr, half, total == 0 ? 0 : done.share, p.E);
        out += 8 * p.out_steps.row;
      }
      MeetAt(alone, 128);
      // The other queries may just find values that are not finite: then not all threads are here,
      // and these have nothing to add.
      if (is_bad) {
        const int left = item.S - item.top - 64 * group;
        AddBadValuesOf<T>(p, item, 64 * group, min(left, 64), thread, is_empty);
      }
      MeetAt(alone, 128);
      q_at.Next(), told_at.Next();
    }
  }
}

// ---- host ----

// Whether TMA can read x, (B, H, S, D), in boxes of so many rows of so many heads.
inline bool EncodeHeads(CUtensorMap* map, const AnyopTensor& x, int box_rows, int box_heads = 1) {
  const auto step = [&](int d) { return x.shape[d] > 1 ? 2 * x.strides[d] : 16; };
  for (int d = 0; d < 3; ++d)
    if (step(d) <= 0) return false;
  const CUtensorMapDataType type = AnyopDtypeOf(&x) == kAnyopFloat16
                                       ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                       : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
  return EncodeMap(map, {x.data, x.shape[2], x.shape[3], step(2), type, 2, box_rows, 4, x.shape[1],
                         step(1), x.shape[0], step(0), box_heads});
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
  AttentionView p = view;
  p.box = view.table ? std::min(view.box, Tile::kKeys) : Tile::kKeys;
  if (view.table) p.column_step = Tile::kKeys / p.places, p.place_step = Tile::kKeys % p.places;
  if (p.items > INT32_MAX / 2 || !EncodeHeads(&q, *problem.q, Tile::kRows) ||
      !EncodeHeads(&k, *problem.k, p.box) || !EncodeHeads(&v, *problem.v, p.box))
    return DeclineHopper(call);
  if (const int32_t status = AllowShared<kernel>(call, Tile::kSharedBytes)) return status;
  Limits limits;
  if (const int32_t status = ReadLimits(call, &limits)) return status;
  // Tiles differ under a causal bound: the longest of as many heads as the second cache holds the
  // keys and values of (32 MiB) come first. Packed sequences come tile by tile of all heads.
  const bool differ = p.cu_q || p.right < p.T;
  const int64_t bytes = int64_t{2} * p.T * (p.D + p.E);
  const int64_t heads = p.cu_q ? p.H : std::max<int64_t>(1, (32 << 20) / bytes) * p.group;
  const int ahead = differ ? static_cast<int>(std::min(heads, p.items / p.tiles)) : 0;
  const int64_t blocks = std::min<int64_t>(p.items, limits.multiprocessors);
  const Launch launch = {dim3(static_cast<unsigned>(blocks)), dim3(Tile::kThreads),
                         Tile::kSharedBytes};
  return launch.Run(call, kernel, q, k, v, p, FactorsOf(p), ahead);
}

}  // namespace
}  // namespace anyop::cuda
