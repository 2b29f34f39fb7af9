// SPDX-License-Identifier: Apache-2.0
// Products of many rows on Hopper: tiles of 128 x 256 (256 x 128 with scales of blocks), one
// warpgroup that loads by TMA and two that multiply by wgmma and store.
//
// Blocks are persistent and come in clusters of two, which share the tile of weight (two rows of
// tiles) or of x (two columns) by multicast: each loads half of it for both. A stage of the ring is
// 128 bytes of k, 48 KiB; results go through 8 KiB of shared memory, to memory by TMA. No sum is
// split, so a row's bits depend neither on other rows nor on their number.
#pragma once

#include "anyop/cuda/hopper.h"
#include "tile_problem.h"

namespace anyop::cuda {
namespace {

template <Operand kType, TileForm kForm>
struct TileShape {
  static constexpr bool kScaled = kForm == TileForm::kBlocks;
  static constexpr bool kGated = kForm == TileForm::kGated || kForm == TileForm::kGatedSegments;
  static constexpr bool kHasEnds = !kScaled && !kGated;  // scales and bias
  static constexpr bool kSharesX =
      kScaled || kForm == TileForm::kSegments || kForm == TileForm::kGatedSegments;
  static constexpr int kHeights = kScaled ? 2 : 1;  // 64 rows each, of a warpgroup
  static constexpr int kRows = 128 * kHeights, kColumns = kScaled ? 128 : 256;
  static constexpr int kResultColumns = kGated ? 128 : kColumns;
  static constexpr int kClusterRows = kSharesX ? kRows : 2 * kRows;
  static constexpr int kClusterColumns = kSharesX ? 2 * kResultColumns : kResultColumns;
  static constexpr int kDepth = 128 / BytesOf(kType), kStages = 4;
  static constexpr uint32_t kXBytes = kRows * 128, kStageBytes = kXBytes + kColumns * 128;
  static constexpr int kXBox = kSharesX ? kRows / 2 : kRows;
  static constexpr int kWeightRows = kSharesX ? kColumns : kColumns / 2;  // that a block loads
  static constexpr int kWeightBox = kGated ? kColumns / 2 : kWeightRows;
  static constexpr uint32_t kPieceBytes = 64 * 128;  // 64 rows x 64 results of 16 bits
  static constexpr uint32_t kSharedBytes =
      kStages * kStageBytes + 4 * kPieceBytes + 256 + kColumns * sizeof(ColumnEnd);
};

// Where a warpgroup's results go: 64 rows and 64 columns at a time.
struct ResultPlace {
  const CUtensorMap* map;  // of out or pre
  void* out;
  int64_t pitch;
  int row, rows_left, column, columns_left;
  bool by_tma;  // out is aligned
};

// kRows rows by 64 results of 16 bits that are not a whole box of an aligned matrix, by 128
// threads. In loops: what a block runs once, it fetches from memory, 16 bytes an instruction.
template <int kRows>
__device__ void CopyPiece(uint32_t buffer, const ResultPlace& to, int thread) {
#pragma unroll 1
  for (int i = 0; i < kRows / 16; ++i) {
    const int row = (thread >> 3) + 16 * i, piece = thread & 7;
    const int left = to.columns_left - 8 * piece;
    if (row >= to.rows_left || left <= 0) continue;
    uint32_t words[4];
    LoadShared(words, buffer + Swizzled(row, piece));
    auto* out = static_cast<uint16_t*>(to.out) + (to.row + row) * to.pitch + to.column + 8 * piece;
    if (to.by_tma && left >= 8) {
      *reinterpret_cast<uint4*>(out) = make_uint4(words[0], words[1], words[2], words[3]);
    } else {
#pragma unroll
      for (int k = 0; k < 8; ++k)
        if (k < left) out[k] = static_cast<uint16_t>(words[k / 2] >> 16 * (k % 2));
    }
  }
}

// A warpgroup's way out of its registers; piece by piece over two buffers. kFloats: results may be
// float32, which go straight to memory.
template <Operand kType, bool kFloats = kType == Operand::kInt8>
class ResultWriter {
 public:
  __device__ ResultWriter(uint32_t buffers, int warpgroup, AnyopDtype result)
      : buffers_(buffers), barrier_(1 + warpgroup), thread_(threadIdx.x & 127), result_(result) {}

  // v: as Product's sums of 64 columns. All 128 threads, with the same place.
  __device__ void Write(const float (&v)[32], const ResultPlace& to) {
    if (to.rows_left <= 0 || to.columns_left <= 0) return;
    if (kFloats && result_ == kAnyopFloat32) return WriteFloats(v, to);
    const uint32_t buffer = buffers_ + buffer_ * 64 * 128, lane = thread_ & 31;
    const uint32_t row = thread_ / 32 * 16 + (lane & 15), half = lane >> 4;
    const bool whole = to.by_tma && to.rows_left >= 64 && to.columns_left >= 64;
    buffer_ ^= 1;
    if (thread_ == 0) WaitForStores<1>();
    MeetAt(barrier_, 128);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float* e = v + 8 * j;
      StoreMatrices(buffer + Swizzled(row, 2 * j + half), Narrowed(e[0], e[1]),
                    Narrowed(e[2], e[3]), Narrowed(e[4], e[5]), Narrowed(e[6], e[7]));
    }
    FenceForTma();
    MeetAt(barrier_, 128);
    if (whole) {
      if (thread_ == 0) StoreBox(to.map, buffer, to.column, to.row);
    } else {
      CopyPiece<64>(buffer, to, thread_);
    }
    if (thread_ == 0) CommitStores();  // an empty group counts too
  }
  __device__ void WriteFloats(const float (&v)[32], const ResultPlace& to) const {
    const int lane = thread_ & 31, row = thread_ / 32 * 16 + lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int r = row + i / 2 * 8, c = column + 8 * j + i % 2;
        if (r < to.rows_left && c < to.columns_left)
          static_cast<float*>(to.out)[(to.row + r) * to.pitch + to.column + c] = v[4 * j + i];
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

// Who does what: warp 0 finds the tiles, tells the others and loads; warp 1 reads what the
// columns' sums end in; warps 2 and 3 zero rows of no segment; warpgroups 1 and 2 multiply and
// store.
constexpr int kFound = 4;  // tiles that warp 0 is ahead at most

// The tiles that warp 0 has found, as a warp knows them: it tells, the others take each.
class FoundTiles {
 public:
  __device__ FoundTiles(uint64_t (&found)[kFound], uint64_t (&taken)[kFound], int4* places)
      : found_(SharedAddress(found)), taken_(SharedAddress(taken)), places_(places) {}
  // By one thread, before all others.
  __device__ void Init(int takers) const {
    for (int i = 0; i < kFound; ++i) {
      InitBarrier(found_ + 8 * i, 1);
      InitBarrier(taken_ + 8 * i, takers);
    }
  }
  __device__ void Tell(bool is_there, const TilePlace& place) {
    if ((threadIdx.x & 31) == 0) {
      WaitAt(taken_ + 8 * at_.stage, at_.parity ^ 1);
      places_[at_.stage] =
          make_int4(is_there ? place.expert : -1, place.row, place.end, place.column);
      Arrive(found_ + 8 * at_.stage);
    }
    at_.Next();
  }
  // False behind the last.
  __device__ bool Take(TilePlace* place) {
    WaitAt(found_ + 8 * at_.stage, at_.parity);
    const int4 told = places_[at_.stage];
    __syncwarp();
    if ((threadIdx.x & 31) == 0) Arrive(taken_ + 8 * at_.stage);
    at_.Next();
    *place = {told.x, told.y, told.z, told.w};
    return told.x >= 0;
  }

 private:
  const uint32_t found_, taken_;
  int4* const places_;
  RingPlace<kFound> at_;
};
constexpr int kTurns = 3;  // and 4: where the warpgroups take turns

struct TileBarriers {
  uint64_t full[4], empty[4], found[kFound], taken[kFound], ends, ends_taken;
};

template <Operand kType, TileForm kForm, bool kFloats>
__global__ __launch_bounds__(384, 1) void MultiplyTiles(
    const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap weight_map,
    const __grid_constant__ CUtensorMap out_map, const __grid_constant__ CUtensorMap pre_map,
    const __grid_constant__ TileProblem p, const int group, const bool by_tma) {
  using Shape = TileShape<kType, kForm>;
  using Sum = typename SumOf<kType>::Type;
  uint8_t* const shared = SharedTiles();
  constexpr uint32_t kResults = Shape::kStages * Shape::kStageBytes;
  constexpr uint32_t kBarriers = kResults + 4 * Shape::kPieceBytes;
  const uint32_t ring = SharedAddress(shared), results = ring + kResults;
  auto& barriers = *reinterpret_cast<TileBarriers*>(shared + kBarriers);
  const uint32_t full = SharedAddress(barriers.full), empty = SharedAddress(barriers.empty);
  const uint32_t ends_full = SharedAddress(&barriers.ends);
  const uint32_t ends_taken = SharedAddress(&barriers.ends_taken);
  auto* const places = reinterpret_cast<int4*>(shared + kBarriers + sizeof(TileBarriers));
  auto* const ends = reinterpret_cast<ColumnEnd*>(places + kFound);
  FoundTiles tiles(barriers.found, barriers.taken, places);
  const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  const int warpgroup = warp / 4, rank = static_cast<int>(ClusterRank());
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kStages; ++i) {
      InitBarrier(full + 8 * i, 1);
      InitBarrier(empty + 8 * i, 4);  // two warpgroups of two blocks
    }
    tiles.Init(9);  // warp 1 and eight that multiply
    InitBarrier(ends_full, 32);
    InitBarrier(ends_taken, 8);
    FenceBarriers();
    PrefetchMap(&x_map), PrefetchMap(&weight_map), PrefetchMap(&out_map);
  }
  ClusterSync();
  WaitForWork();
  const int columns = (p.N + Shape::kClusterColumns - 1) / Shape::kClusterColumns;
  const int steps = (p.K + Shape::kDepth - 1) / Shape::kDepth;
  RingPlace<Shape::kStages> at;
  if (warpgroup == 0) {
    GiveRegisters<40>();
    TilePlace place;
    if (warp == 0) {
      TileWalk walk(p, Shape::kClusterRows, columns, group);
      for (int tile = ClusterIndex();; tile += ClusterCount()) {
        const bool is_there = walk.Find(tile, &place);
        tiles.Tell(is_there, place);
        if (!is_there) break;
        if (lane == 0) {
          const int row = place.row + rank * (Shape::kSharesX ? Shape::kXBox : Shape::kRows);
          int column = place.column * Shape::kClusterColumns;
          if constexpr (Shape::kGated)
            column += place.expert * 2 * p.N + rank * (Shape::kSharesX ? Shape::kWeightBox : p.N);
          else
            column += place.expert * p.N + rank * Shape::kWeightBox;
          for (int k = 0; k < steps; ++k, at.Next()) {
            const uint32_t x = ring + at.stage * Shape::kStageBytes, w = x + Shape::kXBytes;
            const uint32_t barrier = full + 8 * at.stage;
            WaitAt(empty + 8 * at.stage, at.parity ^ 1);
            ArriveForBytes(barrier, Shape::kStageBytes);
            if constexpr (Shape::kSharesX) {
              LoadBoxForMany(x + rank * Shape::kXBox * 128, &x_map, barrier, k * Shape::kDepth, row,
                             3);
              LoadBox(w, &weight_map, barrier, k * Shape::kDepth, column);
              if constexpr (Shape::kGated)
                LoadBox(w + Shape::kWeightBox * 128, &weight_map, barrier, k * Shape::kDepth,
                        column + p.N);
            } else {
              LoadBox(x, &x_map, barrier, k * Shape::kDepth, row);
              LoadBoxForMany(w + rank * Shape::kWeightBox * 128, &weight_map, barrier,
                             k * Shape::kDepth, column, 3);
            }
          }
        }
        __syncwarp();
      }
      LetNextStart();
    } else if (warp == 1) {
      uint32_t parity = 1;
      while (tiles.Take(&place)) {
        if (!Shape::kHasEnds) continue;
        const int left = place.column * Shape::kClusterColumns +
                         (Shape::kSharesX ? rank * Shape::kResultColumns : 0);
        WaitAt(ends_taken, parity);
        parity ^= 1;
        for (int c = lane; c < Shape::kResultColumns; c += 32)
          ends[c] = EndOf(p, place.expert, left + c);
        Arrive(ends_full);
      }
    } else {
      TileWalk(p, Shape::kClusterRows, columns, group).ZeroRest(threadIdx.x - 64, 64);
    }
  } else {
    TakeRegisters<232>();
    constexpr int kSums = Shape::kColumns / 2;
    const int w = warpgroup - 1, thread = threadIdx.x & 127;
    const int my_row = w * 64 * Shape::kHeights + thread / 32 * 16 + lane / 4;
    ResultWriter<kType, kFloats> writer(results + w * 2 * Shape::kPieceBytes, w, p.result);
    Sum sums[Shape::kHeights][kSums];
    const bool has_no_ends = !p.row_scale && !p.column_scale && !p.bias;
    uint32_t ends_parity = 0;
    TilePlace place;
    if (Shape::kScaled && w == 1) ArriveAtMeeting(kTurns, 256);  // the first turn is the other's
    while (tiles.Take(&place)) {
      const int top = place.row + (Shape::kSharesX ? 0 : rank * Shape::kRows);
      const int left = place.column * Shape::kClusterColumns +
                       (Shape::kSharesX ? rank * Shape::kResultColumns : 0);
      float row_scale[2 * Shape::kHeights];
#pragma unroll
      for (int i = 0; i < 2 * Shape::kHeights; ++i)
        row_scale[i] =
            Shape::kHasEnds
                ? RowScale(p, Lesser(top + my_row + 8 * (i % 2) + 64 * (i / 2), place.end - 1))
                : 1;
      if constexpr (!Shape::kScaled) {
        uint32_t last = 0;
        for (int k = 0; k < steps; ++k, at.Next()) {
          WaitAt(full + 8 * at.stage, at.parity);
          const uint32_t x = ring + at.stage * Shape::kStageBytes;
          const uint64_t a = TileOf(x + w * 64 * 128), b = TileOf(x + Shape::kXBytes);
          FenceProducts();
#pragma unroll
          for (int i = 0; i < 4; ++i)
            Product<Shape::kColumns>::template Add<kType>(sums[0], a + 2 * i, b + 2 * i, k + i);
          CommitProducts();
          WaitForProducts<1>();
          if (k && thread < 2) ArriveAtPeer(empty + 8 * last, thread);  // nothing reads it now
          last = at.stage;
        }
        WaitForProducts<0>();
        Pin(sums[0]);
        if (thread < 2) ArriveAtPeer(empty + 8 * last, thread);
      } else {
        const float* x_scale[2 * Shape::kHeights];
        float scale[2 * Shape::kHeights], next[2 * Shape::kHeights];
        const float* weight_scale = p.weight_scale + place.expert * p.weight_scale_expert +
                                    Lesser(left, p.N - 1) / 128 * p.weight_scale_row;
#pragma unroll
        for (int i = 0; i < 2 * Shape::kHeights; ++i) {
          const int row = Lesser(top + my_row + 8 * (i % 2) + 64 * (i / 2), place.end - 1);
          x_scale[i] = p.x_scale + place.expert * p.x_scale_expert + row * p.x_scale_row;
          next[i] = *x_scale[i] * *weight_scale;
        }
#pragma unroll
        for (int h = 0; h < Shape::kHeights; ++h)
#pragma unroll
          for (int i = 0; i < kSums; ++i) sums[h][i] = 0;
        for (int k = 0; k < steps; ++k, at.Next()) {
          const int ahead = Lesser(k + 1, steps - 1);
          const float by = weight_scale[ahead * p.weight_scale_k];
#pragma unroll
          for (int i = 0; i < 2 * Shape::kHeights; ++i) {
            scale[i] = next[i];
            next[i] = x_scale[i][ahead * p.x_scale_k];
          }
          WaitAt(full + 8 * at.stage, at.parity);
          const uint32_t x = ring + at.stage * Shape::kStageBytes;
          const uint64_t b = TileOf(x + Shape::kXBytes);
          // The warpgroups take turns: one scales and adds while the other's products run.
#pragma unroll
          for (int h = 0; h < Shape::kHeights; ++h) {
            Sum part[kSums];
            const uint64_t a = TileOf(x + (w * Shape::kHeights + h) * 64 * 128);
            MeetAt(kTurns + w, 256);
            FenceProducts();
#pragma unroll
            for (int i = 0; i < 4; ++i)
              Product<Shape::kColumns>::template Add<kType>(part, a + 2 * i, b + 2 * i, i);
            CommitProducts();
            ArriveAtMeeting(kTurns + 1 - w, 256);
            WaitForProducts<0>();
            Pin(part);
            if (h == Shape::kHeights - 1 && thread < 2) ArriveAtPeer(empty + 8 * at.stage, thread);
#pragma unroll
            for (int i = 0; i < kSums; ++i)
              sums[h][i] = MulAdd(part[i], scale[2 * h + i / 2 % 2], sums[h][i]);
          }
#pragma unroll
          for (int i = 0; i < 2 * Shape::kHeights; ++i) next[i] *= by;
        }
      }
      if constexpr (Shape::kHasEnds) WaitAt(ends_full, ends_parity);
      ends_parity ^= 1;
#pragma unroll
      for (int h = 0; h < Shape::kHeights; ++h) {
        ResultPlace to;
        to.row = top + (w * Shape::kHeights + h) * 64;
        to.rows_left = place.end - to.row;
        to.by_tma = by_tma;
        if constexpr (Shape::kGated) {
          to.map = &pre_map, to.out = p.pre, to.pitch = 2 * p.N;
#pragma unroll
          for (int s = 0; s < 4; ++s) {
            float v[32];
            if (!p.pre) break;
#pragma unroll
            for (int i = 0; i < 32; ++i) v[i] = sums[h][32 * s + i];
            to.column = left + 64 * (s % 2) + (s / 2) * p.N;
            to.columns_left = p.N - left - 64 * (s % 2);
            writer.Write(v, to);
          }
        }
        if constexpr (Shape::kGated) {
          WithActivation(p.activation, [&](auto activate) {
#pragma unroll
            for (int i = 0; i < 64; ++i) sums[h][i] = activate(sums[h][i]) * sums[h][64 + i];
          });
        }
        to.map = &out_map, to.out = p.out, to.pitch = p.N;
#pragma unroll
        for (int s = 0; s < Shape::kResultColumns / 64; ++s) {
          float v[32];
          if (!Shape::kHasEnds || has_no_ends) {
#pragma unroll
            for (int i = 0; i < 32; ++i) v[i] = static_cast<float>(sums[h][32 * s + i]);
          } else {
#pragma unroll
            for (int i = 0; i < 32; i += 4) {
              const float4 two =
                  *reinterpret_cast<const float4*>(ends + 64 * s + 2 * i + lane % 4 * 2);
#pragma unroll
              for (int k = 0; k < 4; ++k)
                v[i + k] =
                    Finish(static_cast<float>(sums[h][32 * s + i + k]), row_scale[2 * h + k / 2],
                           k % 2 ? ColumnEnd{two.z, two.w} : ColumnEnd{two.x, two.y});
            }
          }
          to.column = left + 64 * s;
          to.columns_left = p.N - to.column;
          writer.Write(v, to);
        }
      }
      __syncwarp();
      if (Shape::kHasEnds && lane == 0) Arrive(ends_taken);
    }
    writer.End();
  }
  __syncwarp();
  ClusterSync();  // the other block may still write here, or arrive
}

// ---- host ----

inline CUtensorMapDataType MapTypeOf(Operand type) {
  return type == Operand::kBFloat16  ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
         : type == Operand::kFloat16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                     : CU_TENSOR_MAP_DATA_TYPE_UINT8;
}
inline bool EncodeRows(CUtensorMap* map, Operand type, const void* data, int64_t rows,
                       int64_t columns, int box_rows) {
  const int bytes = BytesOf(type);
  return EncodeMap(map, {data, rows, columns, columns * bytes, MapTypeOf(type), bytes, box_rows});
}
// What TMA can read.
inline bool TakesTma(const TileProblem& p, Operand type) {
  return int64_t{p.K} * BytesOf(type) % 16 == 0 && p.K > 0 && IsAligned(p.x, 16) &&
         IsAligned(p.weight, 16);
}
inline int32_t DeclineTma(AnyopCall* call) {
  return call->fail(call, kAnyopDeclined,
                    "its rows are no multiple of 16 bytes or begin at none, or the driver makes no "
                    "tensor maps");
}

// Persistent blocks of 384 threads in clusters of two, no more clusters than tiles.
template <auto kKernel, typename... Arguments>
int32_t RunInPairs(AnyopCall* call, int64_t tiles, uint32_t shared_bytes, Arguments... arguments) {
  if (int32_t status = AllowShared<kKernel>(call, static_cast<int>(shared_bytes))) return status;
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  const int64_t most = limits.multiprocessors / 2, clusters = tiles < most ? tiles : most;
  const Launch launch{dim3(static_cast<unsigned>(2 * clusters)), dim3(384), shared_bytes, true, 2};
  return launch.Run(call, kKernel, arguments...);
}

template <Operand kType, TileForm kForm, bool kFloats = kType == Operand::kInt8>
int32_t RunTiles(AnyopCall* call, const TileProblem& p) {
  using Shape = TileShape<kType, kForm>;
  if (p.rows == 0 || p.N == 0) return kAnyopOk;
  if (!TakesTma(p, kType)) return DeclineTma(call);
  const bool by_tma =
      p.result != kAnyopFloat32 && p.N % 8 == 0 && IsAligned(p.out, 16) && IsAligned(p.pre, 16);
  const Operand narrow = p.result == kAnyopFloat16 ? Operand::kFloat16 : Operand::kBFloat16;
  CUtensorMap x, weight, out, pre;
  const int64_t weight_rows = int64_t{p.experts} * p.N * (Shape::kGated ? 2 : 1);
  if (!EncodeRows(&x, kType, p.x, p.rows, p.K, Shape::kXBox) ||
      !EncodeRows(&weight, kType, p.weight, weight_rows, p.K, Shape::kWeightBox))
    return DeclineTma(call);
  out = pre = x;
  if (by_tma && (!EncodeRows(&out, narrow, p.out, p.rows, p.N, 64) ||
                 (p.pre && !EncodeRows(&pre, narrow, p.pre, p.rows, 2 * int64_t{p.N}, 64))))
    return DeclineTma(call);
  const bool segments = p.offsets || p.counts;
  const int64_t tiles = (CeilDiv(p.rows, Shape::kClusterRows) + (segments ? p.experts : 0)) *
                        CeilDiv(p.N, Shape::kClusterColumns);
  const int group = 2048 / Shape::kClusterRows;
  return RunInPairs<MultiplyTiles<kType, kForm, kFloats>>(call, tiles, Shape::kSharedBytes, x,
                                                          weight, out, pre, p, group, by_tma);
}

}  // namespace
}  // namespace anyop::cuda
