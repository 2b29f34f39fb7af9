// SPDX-License-Identifier: Apache-2.0
// The gradients of grouped_linear (and of what is made of it: fused_moe_backward,
// grouped_wgrad_accumulate) on Hopper, in float16 and bfloat16: tiles of 128 x 256, one
// warpgroup that loads by TMA and two that multiply by wgmma and store.
//
// As ops/linear/tile_sm90.h, but of operands whose terms lie in rows: 64 terms of 64 columns are a
// panel of 8 KiB. grad_x = grad_out weight[e]: blocks of a cluster have the same rows and share
// grad_out. grad_weight[e] = grad_out^T x over the segment's rows, in their order: they have the
// same columns and share x. No sum is split.
#pragma once

#include "../linear/product_sm90.h"

namespace anyop::cuda {
namespace {

template <bool kOfWeight>
struct GradientTile {
  static constexpr int kRows = 128, kColumns = 256, kTerms = 64, kStages = 4;
  static constexpr int kClusterRows = kOfWeight ? 2 * kRows : kRows;
  static constexpr int kClusterColumns = kOfWeight ? kColumns : 2 * kColumns;
  static constexpr uint32_t kPanelBytes = kTerms * 128, kABytes = 2 * kPanelBytes;
  static constexpr uint32_t kStageBytes = 6 * kPanelBytes;
  static constexpr uint32_t kResults = kStages * kStageBytes;
  static constexpr uint32_t kBarriers = kResults + 4 * kPanelBytes, kSharedBytes = kBarriers + 256;
};

struct GradientBarriers {
  uint64_t full[4], empty[4], found[kFound], taken[kFound];
};

// Puts zeroes into terms from `left` on, by 256 threads: those of the next segment.
__device__ inline void ClearTerms(uint32_t stage, int left, int thread) {
  const int lines = 64 - left;
  for (int i = thread; i < 6 * 8 * lines; i += 256) {
    const int line = i / 8, panel = line / lines;
    const uint32_t at = stage + 8192 * panel + (left + line % lines) * 128 + i % 8 * 16;
    asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
  }
  FenceForTma();
  MeetAt(3, 256);
}

// Adds the bias, of kType, to Product's sums of 64 columns from `column` on.
template <Operand kType>
__device__ inline void AddBias(float (&v)[32], const TileProblem& p, int expert, int column) {
  using T = std::conditional_t<kType == Operand::kFloat16, __half, __nv_bfloat16>;
  const T* bias = static_cast<const T*>(p.bias) + int64_t{expert} * p.N;
  const int first = column + (threadIdx.x & 3) * 2;
#pragma unroll
  for (int j = 0; j < 8; ++j)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int n = first + 8 * j + i;
      const float more = n < p.N ? Widen(bias[n]) : 0;
      v[4 * j + i] += more;
      v[4 * j + 2 + i] += more;
    }
}

// Adds what is there to sums, placed as ResultWriter::WriteFloats has them.
__device__ inline void AddWhatIsThere(float (&v)[32], const ResultPlace& to) {
  const int thread = threadIdx.x & 127, lane = thread & 31;
  const int row = thread / 32 * 16 + lane / 4, column = lane % 4 * 2;
#pragma unroll
  for (int j = 0; j < 8; ++j)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int r = row + i / 2 * 8, c = column + 8 * j + i % 2;
      if (r < to.rows_left && c < to.columns_left)
        v[4 * j + i] += static_cast<float*>(to.out)[(to.row + r) * to.pitch + to.column + c];
    }
}

// The problems of RunGradients; a_map is of grad_out, b_map of weight or of x. kFloats: results may
// be float32, and there may be a bias. kAdds: they are, and are added to what is there, but where
// an expert has no rows.
template <Operand kType, bool kOfWeight, bool kFloats, bool kAdds>
__global__ __launch_bounds__(384, 1) void MultiplyForGradients(
    const __grid_constant__ CUtensorMap a_map, const __grid_constant__ CUtensorMap b_map,
    const __grid_constant__ CUtensorMap out_map, const __grid_constant__ TileProblem p,
    const bool by_tma) {
  using Tile = GradientTile<kOfWeight>;
  extern __shared__ __align__(1024) uint8_t shared[];
  const uint32_t ring = SharedAddress(shared);
  auto& barriers = *reinterpret_cast<GradientBarriers*>(shared + Tile::kBarriers);
  const uint32_t full = SharedAddress(barriers.full), empty = SharedAddress(barriers.empty);
  FoundTiles tiles(barriers.found, barriers.taken, reinterpret_cast<int4*>(&barriers + 1));
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int warpgroup = warp / 4, rank = static_cast<int>(ClusterRank());
  if (threadIdx.x == 0) {
    for (int i = 0; i < Tile::kStages; ++i) {
      InitBarrier(full + 8 * i, 1);
      InitBarrier(empty + 8 * i, 4);  // two warpgroups of two blocks
    }
    tiles.Init(8);  // the warps that multiply
    FenceBarriers();
    PrefetchMap(&a_map), PrefetchMap(&b_map), PrefetchMap(&out_map);
  }
  ClusterSync();
  WaitForWork();
  const int columns = (p.N + Tile::kClusterColumns - 1) / Tile::kClusterColumns;
  const int down = (p.capacity + Tile::kClusterRows - 1) / Tile::kClusterRows;
  RingPlace<Tile::kStages> at;
  // Of a tile of grad_weight: the segment's rows, and which tile of the expert's as its column.
  const auto steps_of = [&](const TilePlace& place) {
    const int terms = kOfWeight ? place.end - place.row : p.K;
    return (terms + Tile::kTerms - 1) / Tile::kTerms;
  };
  const auto row_of = [&](const TilePlace& place) {
    return kOfWeight ? place.column % down * Tile::kClusterRows + rank * Tile::kRows : place.row;
  };
  const auto column_of = [&](const TilePlace& place) {
    return kOfWeight ? place.column / down * Tile::kColumns
                     : place.column * Tile::kClusterColumns + rank * Tile::kColumns;
  };
  if (warpgroup == 0) {
    GiveRegisters<40>();
    if (warp == 0) {
      TilePlace place;
      TileWalk walk(p, Tile::kClusterRows, columns, 2048 / Tile::kClusterRows);
      for (int tile = ClusterIndex();; tile += ClusterCount()) {
        bool is_there;
        if constexpr (kOfWeight) {
          const int expert = tile / (down * columns);
          is_there = expert < p.experts;
          if (is_there) place = SegmentOf(p, expert), place.column = tile % (down * columns);
        } else {
          is_there = walk.Find(tile, &place);
        }
        tiles.Tell(is_there, place);
        if (!is_there) break;
        if (lane == 0) {
          const int row = row_of(place), column = column_of(place), steps = steps_of(place);
          for (int k = 0; k < steps; ++k, at.Next()) {
            const uint32_t a = ring + at.stage * Tile::kStageBytes, b = a + Tile::kABytes;
            const uint32_t barrier = full + 8 * at.stage;
            const int term = k * Tile::kTerms;
            WaitAt(empty + 8 * at.stage, at.parity ^ 1);
            ArriveForBytes(barrier, Tile::kStageBytes);
            if constexpr (kOfWeight) {
#pragma unroll
              for (int i = 0; i < 2; ++i) {
                const int half = 2 * rank + i;
                LoadBox(a + i * Tile::kPanelBytes, &a_map, barrier, row + 64 * i, place.row + term);
                LoadBoxForMany(b + half * Tile::kPanelBytes, &b_map, barrier, column + 64 * half,
                               place.row + term, 3);
              }
            } else {
              LoadBoxForMany(a + rank * Tile::kPanelBytes, &a_map, barrier, term, row + 64 * rank,
                             3);
#pragma unroll
              for (int i = 0; i < 4; ++i)
                LoadBox(b + i * Tile::kPanelBytes, &b_map, barrier, column + 64 * i, term,
                        place.expert, 0);
            }
          }
        }
        __syncwarp();
      }
      LetNextStart();
    } else if (!kOfWeight && warp > 1) {
      TileWalk(p, Tile::kClusterRows, columns, 1).ZeroRest(threadIdx.x - 64, 64);
    }
  } else {
    TakeRegisters<232>();
    const int w = warpgroup - 1, thread = threadIdx.x & 127;
    ResultWriter<kType> writer(ring + Tile::kResults + w * 2 * Tile::kPanelBytes, w, p.result);
    float sums[128];
    TilePlace place;
    while (tiles.Take(&place)) {
      const int steps = steps_of(place);
      if (kAdds && !steps) continue;
      uint32_t last = 0;
      for (int k = 0; k < steps; ++k, at.Next()) {
        WaitAt(full + 8 * at.stage, at.parity);
        const uint32_t a = ring + at.stage * Tile::kStageBytes, b = a + Tile::kABytes;
        const int left = place.end - place.row - k * Tile::kTerms;
        if (kOfWeight && left < Tile::kTerms) ClearTerms(a, left, threadIdx.x - 128);
        FenceProducts();
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint64_t terms_of_b = PanelsOf(b + 2048 * i, Tile::kPanelBytes);
          const uint32_t mine = a + w * Tile::kPanelBytes;
          if constexpr (kOfWeight)
            Product<256>::AddTransposed<kType>(sums, PanelsOf(mine + 2048 * i, Tile::kPanelBytes),
                                               terms_of_b, k + i);
          else
            Product<256>::AddTransposed<kType, 0>(sums, TileOf(mine) + 2 * i, terms_of_b, k + i);
        }
        CommitProducts();
        WaitForProducts<1>();
        if (k && thread < 2) ArriveAtPeer(empty + 8 * last, thread);  // nothing reads it now
        last = at.stage;
      }
      WaitForProducts<0>();
      Pin(sums);
      if (steps && thread < 2) ArriveAtPeer(empty + 8 * last, thread);
      if (!steps) {
#pragma unroll
        for (float& sum : sums) sum = 0;
      }
      ResultPlace to = {&out_map,         p.out, p.N,   row_of(place) + 64 * w, 0,
                        column_of(place), 0,     by_tma};
      to.rows_left = (kOfWeight ? p.capacity : place.end) - to.row;
      if (kOfWeight) to.row += place.expert * p.capacity;
      const auto write = [&](auto in_floats) {
#pragma unroll
        for (int s = 0; s < 4; ++s) {
          float v[32];
#pragma unroll
          for (int i = 0; i < 32; ++i) v[i] = sums[32 * s + i];
          to.column = column_of(place) + 64 * s;
          to.columns_left = p.N - to.column;
          if (kFloats && p.bias) AddBias<kType>(v, p, place.expert, to.column);
          if constexpr (kAdds) AddWhatIsThere(v, to);
          if constexpr (in_floats.value)
            writer.WriteFloats(v, to);
          else
            writer.Write(v, to);
        }
      };
      if (kFloats && (kAdds || p.result == kAnyopFloat32))
        write(std::bool_constant<kFloats>());
      else
        write(std::false_type());
    }
    writer.End();
  }
  __syncwarp();
  ClusterSync();  // the other block may still write here, or arrive
}

template <Operand kType, bool kOfWeight, bool kFloats = false, bool kAdds = false>
int32_t RunGradient(AnyopCall* call, const TileProblem& p) {
  using Tile = GradientTile<kOfWeight>;
  const int64_t terms = kOfWeight ? p.capacity : p.K;  // a row of grad_out
  if (terms % 8 || p.N % 8 || !terms || !p.rows || !IsAligned(p.x, 16) || !IsAligned(p.weight, 16))
    return DeclineTma(call);
  const CUtensorMapDataType type = MapTypeOf(kType);
  const bool by_tma = p.result != kAnyopFloat32 && IsAligned(p.out, 16);
  MatrixOfMap b_of = {p.weight, p.rows, p.N, 2 * int64_t{p.N}, type, 2, Tile::kTerms};
  if (!kOfWeight) {  // terms behind an expert's last are 0
    b_of.dimensions = 4, b_of.rows = p.K, b_of.count = p.experts;
    b_of.count_bytes = 2 * int64_t{p.N} * p.K;
  }
  CUtensorMap a, b, out;
  if (!EncodeRows(&a, kType, p.x, p.rows, terms, 64) || !EncodeMap(&b, b_of))
    return DeclineTma(call);
  out = a;
  const int64_t out_rows = kOfWeight ? int64_t{p.experts} * p.capacity : p.rows;
  if (by_tma && !EncodeRows(&out, kType, p.out, out_rows, p.N, 64)) return DeclineTma(call);
  const int64_t down = kOfWeight ? p.experts * CeilDiv(p.capacity, int64_t{Tile::kClusterRows})
                                 : CeilDiv(p.rows, int64_t{Tile::kClusterRows}) + p.experts;
  const int64_t tiles = down * CeilDiv(p.N, int64_t{Tile::kClusterColumns});
  return RunInPairs<MultiplyForGradients<kType, kOfWeight, kFloats, kAdds>>(
      call, tiles, Tile::kSharedBytes, a, b, out, p, by_tma);
}

// grad_x: segments that are not short have tiles of their own height (segment_sm90.h).
template <Operand kType, bool kFloats = false>
int32_t RunGradientOfRows(AnyopCall* call, const TileProblem& p) {
  return SegmentRows(p) > kShortSegment
             ? RunSegments<kType, SegmentForm::kTransposed, false, kFloats>(call, p)
             : RunGradient<kType, false, kFloats>(call, p);
}

}  // namespace
}  // namespace anyop::cuda
