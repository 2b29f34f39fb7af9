// SPDX-License-Identifier: Apache-2.0
// Products of segments of many rows by weights of their own on Hopper, in float16 and bfloat16: one
// warpgroup that loads and two that multiply by wgmma and store.
//
// wgmma's rows are the weight's and its columns those of x, of which it takes any multiple of 8: a
// segment is cut into equally high tiles, and next to nothing is multiplied in vain. Blocks are
// persistent and come in clusters of two with the same 256 rows of weight, of which each loads half
// for both by multicast, and up to 160 rows of x each. A stage of the ring is 64 terms, 52 KiB.
// Rows of x come by TMA, or by cp.async, each from where `order` says. A warpgroup has half of each
// 128 rows of weight (gated: of the gates and of the others) in registers, and stores 32 rows by 64
// columns at a time through shared memory. No sum is split, so a row's bits depend neither on other
// rows nor on their number.
#pragma once

#include "tile_sm90.h"

namespace anyop::cuda {
namespace {

enum class SegmentForm { kRows, kGated, kTransposed };  // transposed: experts K N

template <SegmentForm kForm, bool kGathers>
struct SegmentShape {
  static constexpr bool kGated = kForm == SegmentForm::kGated;
  static constexpr bool kTransposed = kForm == SegmentForm::kTransposed;
  static constexpr int kTokens = 160, kColumns = kGated ? 128 : 256;
  static constexpr int kDepth = 64, kStages = 4, kBuffers = 2;
  static constexpr int kGatherers = kGathers ? 3 : 0;  // warps
  static constexpr uint32_t kPanelBytes = 64 * 128, kHalfBytes = 2 * kPanelBytes,
                            kWeightBytes = 2 * kHalfBytes;
  static constexpr uint32_t kStageBytes = kWeightBytes + kTokens * 128;
  static constexpr uint32_t kPieceBytes = 32 * 128;  // 32 rows x 64 results of 16 bits
  static constexpr uint32_t kResults = kStages * kStageBytes;
  static constexpr uint32_t kBarriers = kResults + 2 * kBuffers * kPieceBytes;
  static constexpr uint32_t kSharedBytes = kBarriers + 256;
};

struct SegmentBarriers {
  uint64_t full[4], empty[4], found[kFound], taken[kFound];
};

// The rows of a tile that a block of the cluster has: a multiple of 8, the same for all, of which
// those from end on are of none.
struct BlockRows {
  int row, end, count;

  __device__ BlockRows(const TilePlace& place, int rank, int blocks = 2) {
    count = (place.end - place.row + 8 * blocks - 1) / (8 * blocks) * 8;
    row = place.row + rank * count;
    end = Lesser(row + count, place.end);
  }
};

// f(number of columns, as a constant) of a multiple of 8 up to kMost.
template <int kMost, int kColumns = 8, typename F>
__device__ void WithColumns(int columns, const F& f) {
  if constexpr (kColumns < kMost)
    if (columns > kColumns) return WithColumns<kMost, kColumns + 8>(columns, f);
  f(std::integral_constant<int, kColumns>());
}

// A warpgroup's way out of its registers, 32 rows by 64 columns of results at a time.
template <Operand kType, int kBuffers>
class PieceWriter {
 public:
  __device__ PieceWriter(uint32_t buffers, int warpgroup, AnyopDtype result)
      : buffers_(buffers), barrier_(1 + warpgroup), thread_(threadIdx.x & 127), result_(result) {}

  // v: Product's sums of 64 columns of results by 32 rows. All 128 threads, with the same place.
  __device__ __forceinline__ void Write(const float (&v)[16], const ResultPlace& to) {
    if (to.rows_left <= 0 || to.columns_left <= 0) return;
    const uint32_t buffer = buffers_ + buffer_ * 32 * 128, lane = thread_ & 31;
    const uint32_t row = lane / 16 * 8 + (lane & 7), piece = thread_ / 32 * 2 + (lane >> 3 & 1);
    if (++buffer_ == kBuffers) buffer_ = 0;
    if (thread_ == 0) WaitForStores<kBuffers - 1>();
    MeetAt(barrier_, 128);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const float* e = v + 8 * j;
      StoreTransposed(buffer + Swizzled(16 * j + row, piece), Narrowed(e[0], e[1]),
                      Narrowed(e[2], e[3]), Narrowed(e[4], e[5]), Narrowed(e[6], e[7]));
    }
    FenceForTma();
    MeetAt(barrier_, 128);
    if (to.by_tma && to.rows_left >= 32 && to.columns_left >= 64) {
      if (thread_ == 0) StoreBox(to.map, buffer, to.column, to.row);
    } else {
      CopyPiece<32>(buffer, to, thread_);
    }
    if (thread_ == 0) CommitStores();  // an empty group counts too
  }
  __device__ __forceinline__ void WriteFloats(const float (&v)[16], const ResultPlace& to) const {
    const int lane = thread_ & 31, row = lane % 4 * 2, column = thread_ / 32 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int r = row + i / 4 * 8 + i % 2, c = column + i / 2 % 2 * 8;
      if (r < to.rows_left && c < to.columns_left)
        static_cast<float*>(to.out)[(to.row + r) * to.pitch + to.column + c] = v[i];
    }
  }
  __device__ void End() const {
    if (thread_ == 0) WaitForStores<0>();
  }

 private:
  // Results of 16 bits have their operands' type.
  __device__ uint32_t Narrowed(float low, float high) const {
    return kType == Operand::kFloat16    ? NarrowTwo(__half(), low, high)
           : kType == Operand::kBFloat16 ? NarrowTwo(__nv_bfloat16(), low, high)
                                         : NarrowTwoAs(result_, low, high);
  }

  const uint32_t buffers_;
  const int barrier_, thread_;
  const AnyopDtype result_;
  uint32_t buffer_ = 0;
};

// The half of a stage's weights that a block loads for its cluster.
template <SegmentForm kForm>
class WeightBoxes {
 public:
  using Shape = SegmentShape<kForm, false>;

  __device__ WeightBoxes(const CUtensorMap* map, int N, int rank) : map_(map), N_(N), rank_(rank) {}

  __device__ void Load(const TilePlace& place, int k, uint32_t to, uint32_t barrier) const {
    if constexpr (Shape::kTransposed) {
      for (int i = 0; i < 2; ++i)
        LoadBoxForMany(to + i * Shape::kPanelBytes, map_, barrier, Column(place) + 64 * i,
                       k * Shape::kDepth, place.expert, 0, 3);
    } else {
      LoadBoxForMany(to, map_, barrier, k * Shape::kDepth, Row(place), 3);
    }
  }

 private:
  __device__ int Column(const TilePlace& place) const {
    return place.column * Shape::kColumns + rank_ * 128;
  }
  __device__ int Row(const TilePlace& place) const {
    return Shape::kGated ? (2 * place.expert + rank_) * N_ + place.column * Shape::kColumns
                         : place.expert * N_ + Column(place);
  }

  const CUtensorMap* const map_;
  const int N_, rank_;
};

// By 96 threads: brings the stages of a block's rows of x, 16 bytes at a time, to where the rows of
// stage 0 are.
template <int kTokens, int kStages>
__device__ void GatherStages(const TileProblem& p, const BlockRows& rows, uint32_t x,
                             uint32_t stage_bytes, uint32_t full, uint32_t empty,
                             RingPlace<kStages>* at) {
  constexpr int kPasses = (kTokens + 11) / 12;
  const int first = (threadIdx.x - 32) / 8, piece = threadIdx.x & 7, left = rows.count - first;
  const auto pitch = static_cast<uint32_t>(p.K);
  uint32_t tokens[kPasses];
#pragma unroll
  for (int i = 0; i < kPasses; ++i) {
    const int row = Lesser(rows.row + first + 12 * i, rows.end - 1);
    tokens[i] = static_cast<uint32_t>(row < 0 ? 0 : p.order[row] / p.top_k);
  }
  for (int k = piece * 8; k - piece * 8 < p.K; k += 64, at->Next()) {
    WaitAt(empty + 8 * at->stage, at->parity ^ 1);
    const auto* from = static_cast<const uint16_t*>(p.x) + k;
    const uint32_t stage = x + at->stage * stage_bytes;
    // Rows 24 apart are swizzled alike.
    const uint32_t to[] = {stage + Swizzled(first, piece), stage + Swizzled(first + 12, piece)};
#pragma unroll
    for (int i = 0; i < kPasses; ++i)
      if (12 * i < left)
        CopyAside(to[i % 2] + i / 2 * 24 * 128, from + uint64_t{tokens[i]} * pitch, k < p.K);
    ArriveWhenCopied(full + 8 * at->stage);
  }
}

// Who does what: warp 0 finds the tiles, tells the others and loads weights; the others of
// warpgroup 0 gather rows of x, and warps 2 and 3 zero rows of no segment; warpgroups 1 and 2
// multiply and store.
template <Operand kType, SegmentForm kForm, bool kGathers, bool kFloats>
__global__ __launch_bounds__(384, 1) void MultiplySegments(
    const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap weight_map,
    const __grid_constant__ CUtensorMap out_map, const __grid_constant__ CUtensorMap pre_map,
    const __grid_constant__ TileProblem p, const bool by_tma) {
  using Shape = SegmentShape<kForm, kGathers>;
  constexpr bool kGated = Shape::kGated, kTransposed = Shape::kTransposed;
  uint8_t* const shared = SharedTiles();
  const uint32_t ring = SharedAddress(shared);
  auto& barriers = *reinterpret_cast<SegmentBarriers*>(shared + Shape::kBarriers);
  const uint32_t full = SharedAddress(barriers.full), empty = SharedAddress(barriers.empty);
  FoundTiles tiles(barriers.found, barriers.taken, reinterpret_cast<int4*>(&barriers + 1));
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int warpgroup = warp / 4, rank = static_cast<int>(ClusterRank());
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kStages; ++i) {
      InitBarrier(full + 8 * i, 1 + 32 * Shape::kGatherers);
      InitBarrier(empty + 8 * i, 4);  // two warpgroups of two blocks
    }
    tiles.Init(8 + Shape::kGatherers);
    FenceBarriers();
    PrefetchMap(&x_map), PrefetchMap(&weight_map), PrefetchMap(&out_map);
  }
  ClusterSync();
  WaitForWork();
  const int columns = (p.N + Shape::kColumns - 1) / Shape::kColumns;
  const int steps = (p.K + Shape::kDepth - 1) / Shape::kDepth;
  const int group = 2048 / (2 * Shape::kTokens);
  RingPlace<Shape::kStages> at;
  TilePlace place;
  if (warpgroup == 0) {
    GiveRegisters<72>();
    if (warp == 0) {
      TileWalk walk(p, 2 * Shape::kTokens, columns, group, 16);
      const WeightBoxes<kForm> weights(&weight_map, p.N, rank);
      for (int tile = ClusterIndex();; tile += ClusterCount()) {
        const bool is_there = walk.Find(tile, &place);
        tiles.Tell(is_there, place);
        if (!is_there) break;
        if (lane == 0) {
          const BlockRows rows(place, rank);
          const int boxes = kGathers ? 0 : (rows.count + 31) / 32;
          for (int k = 0; k < steps; ++k, at.Next()) {
            const uint32_t stage = ring + at.stage * Shape::kStageBytes;
            const uint32_t barrier = full + 8 * at.stage;
            WaitAt(empty + 8 * at.stage, at.parity ^ 1);
            ArriveForBytes(barrier, Shape::kWeightBytes + boxes * 32 * 128);
            weights.Load(place, k, stage + rank * Shape::kHalfBytes, barrier);
            for (int i = 0; i < boxes; ++i)
              LoadBox(stage + Shape::kWeightBytes + i * 32 * 128, &x_map, barrier,
                      k * Shape::kDepth, rows.row + 32 * i);
          }
        }
        __syncwarp();
      }
      LetNextStart();
    } else {
      if constexpr (kGathers) {
        while (tiles.Take(&place))
          GatherStages<Shape::kTokens>(p, BlockRows(place, rank), ring + Shape::kWeightBytes,
                                       Shape::kStageBytes, full, empty, &at);
      }
      if (warp > 1) TileWalk(p, 1, 1, 1).ZeroRest(threadIdx.x - 64, 64);
    }
  } else {
    TakeRegisters<216>();
    const int w = warpgroup - 1, thread = threadIdx.x & 127;
    PieceWriter<kType, Shape::kBuffers> writer(
        ring + Shape::kResults + w * Shape::kBuffers * Shape::kPieceBytes, w, p.result);
    float sums[2][Shape::kTokens / 2];
    while (tiles.Take(&place)) {
      const BlockRows rows(place, rank);
      WithColumns<Shape::kTokens>(rows.count, [&](auto count) {
        constexpr int kCount = count.value;
        using Sums = float (&)[kCount / 2];
        uint32_t last = 0;
        for (int k = 0; k < steps; ++k, at.Next()) {
          WaitAt(full + 8 * at.stage, at.parity);
          if (kGathers) FenceForTma();
          const uint32_t a = ring + at.stage * Shape::kStageBytes + w * 64 * 128;
          const uint64_t a0 = kTransposed ? PanelsOf(a, Shape::kPanelBytes) : TileOf(a);
          const uint64_t a1 = a0 + (Shape::kHalfBytes >> 4);
          constexpr int kOfA = kTransposed, kStep = kTransposed ? 128 : 2;  // 16 terms
          const uint64_t b = TileOf(ring + at.stage * Shape::kStageBytes + Shape::kWeightBytes);
          FenceProducts();
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            Product<kCount>::template Add<kType, kOfA>(reinterpret_cast<Sums>(sums[0]),
                                                       a0 + kStep * i, b + 2 * i, k + i);
            Product<kCount>::template Add<kType, kOfA>(reinterpret_cast<Sums>(sums[1]),
                                                       a1 + kStep * i, b + 2 * i, k + i);
          }
          CommitProducts();
          WaitForProducts<1>();
          if (k && thread < 2) ArriveAtPeer(empty + 8 * last, thread);  // nothing reads it now
          last = at.stage;
        }
        WaitForProducts<0>();
        Pin(reinterpret_cast<Sums>(sums[0]));
        Pin(reinterpret_cast<Sums>(sums[1]));
        if (thread < 2) ArriveAtPeer(empty + 8 * last, thread);
      });
      ResultPlace to = {&pre_map, p.pre, kGated ? 2 * int64_t{p.N} : p.N, 0, 0, 0, 0, by_tma};
      const int left = place.column * Shape::kColumns + w * 64;
      if constexpr (kGated) {
        if (p.pre) {
#pragma unroll
          for (int i = 0; i < Shape::kTokens / 32; ++i)
#pragma unroll
            for (int h = 0; h < 2; ++h) {
              float v[16];
#pragma unroll
              for (int j = 0; j < 16; ++j) v[j] = sums[h][16 * i + j];
              to.column = left + h * p.N, to.columns_left = p.N - left;
              to.row = rows.row + 32 * i, to.rows_left = rows.end - to.row;
              writer.Write(v, to);
            }
        }
        to.map = &out_map, to.out = p.out, to.pitch = p.N;
#pragma unroll
        for (int i = 0; i < Shape::kTokens / 32; ++i) {
          if (32 * i >= rows.count) break;
          float v[16];
          WithActivation(p.activation, [&](auto activate) {
#pragma unroll
            for (int j = 0; j < 16; ++j) v[j] = activate(sums[0][16 * i + j]) * sums[1][16 * i + j];
          });
          to.column = left, to.columns_left = p.N - left;
          to.row = rows.row + 32 * i, to.rows_left = rows.end - to.row;
          writer.Write(v, to);
        }
      } else {
        to.map = &out_map, to.out = p.out;
        float bias[2][2] = {};
        if (p.bias) {
#pragma unroll
          for (int i = 0; i < 4; ++i)
            bias[i / 2][i % 2] =
                EndOf(p, place.expert, left + i / 2 * 128 + thread / 32 * 16 + lane / 4 + i % 2 * 8)
                    .bias;
        }
        const auto write = [&](auto in_floats) {
#pragma unroll
          for (int i = 0; i < 2 * (Shape::kTokens / 32); ++i) {
            float v[16];
#pragma unroll
            for (int j = 0; j < 16; ++j)
              v[j] = sums[i % 2][16 * (i / 2) + j] + bias[i % 2][j / 2 % 2];
            to.column = left + i % 2 * 128, to.columns_left = p.N - to.column;
            to.row = rows.row + 32 * (i / 2), to.rows_left = rows.end - to.row;
            if constexpr (in_floats.value)
              writer.WriteFloats(v, to);
            else
              writer.Write(v, to);
          }
        };
        if (kFloats && p.result == kAnyopFloat32)
          write(std::bool_constant<kFloats>());
        else
          write(std::false_type());
      }
    }
    writer.End();
  }
  __syncwarp();
  ClusterSync();  // the other block may still write here, or arrive
}

// ---- host ----

template <Operand kType, SegmentForm kForm, bool kGathers = false, bool kFloats = false>
int32_t RunSegments(AnyopCall* call, const TileProblem& p) {
  using Shape = SegmentShape<kForm, kGathers>;
  if (p.rows == 0 || p.N == 0) return kAnyopOk;
  const int row = Shape::kTransposed ? p.N : p.K;
  if (!TakesTma(p, kType) || row % 8) return DeclineTma(call);
  const bool by_tma =
      p.result != kAnyopFloat32 && p.N % 8 == 0 && IsAligned(p.out, 16) && IsAligned(p.pre, 16);
  CUtensorMap x, weight, out, pre;
  const int64_t experts = p.experts;
  MatrixOfMap of = {p.weight, experts * p.N, p.K, 2 * int64_t{p.K}, MapTypeOf(kType), 2, 128};
  if (Shape::kGated) of.rows *= 2;
  if (Shape::kTransposed)  // terms behind an expert's last are 0
    of = {p.weight, p.K, p.N, 2 * int64_t{p.N}, MapTypeOf(kType),
          2,        64,  4,   experts,          2 * int64_t{p.N} * p.K};
  if (!EncodeMap(&weight, of)) return DeclineTma(call);
  x = out = pre = weight;
  if (!kGathers && !EncodeRows(&x, kType, p.x, p.rows, p.K, 32)) return DeclineTma(call);
  if (by_tma && (!EncodeRows(&out, kType, p.out, p.rows, p.N, 32) ||
                 (p.pre && !EncodeRows(&pre, kType, p.pre, p.rows, 2 * int64_t{p.N}, 32))))
    return DeclineTma(call);
  const int64_t tiles = (CeilDiv(p.rows, int64_t{2} * Shape::kTokens) + p.experts) *
                        CeilDiv(p.N, int64_t{Shape::kColumns});
  return RunInPairs<MultiplySegments<kType, kForm, kGathers, kFloats>>(
      call, tiles, Shape::kSharedBytes, x, weight, out, pre, p, by_tma);
}

}  // namespace
}  // namespace anyop::cuda
