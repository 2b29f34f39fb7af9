// SPDX-License-Identifier: Apache-2.0
// Products of at most eight rows on Hopper, bound by the bytes of weight: a ring of weight in
// shared memory that runs on over the ends of tiles.
//
// Blocks stay: each has every gridDim.x-th tile of 16 rows of weight, the long side of mma.sync (of
// a gated product 8 of each half, which end in 8 results). Its warps share K, each takes every
// kWarps-th step of a tile, and their sums are added in their order: a row's bits do not depend on
// the other rows, but on whether there is one row or more. A lane copies 16 bytes of two rows of
// weight at a time to places of its own, kStages steps before their use, so that memory does not
// wait for sums. One row of x comes the same way: read when it is needed, it would make each step
// wait for the second cache. More rows are read from the first. While the kernel before ends, the
// first weight is asked into the second cache and not read, for that kernel may write it.
#pragma once

#include "anyop/cuda/mma.h"
#include "tile_problem.h"

namespace anyop::cuda {
namespace {

constexpr int kRingRows = 16;        // of weight, of a tile
constexpr int kRingPieceBytes = 64;  // of a row of weight, by four lanes
constexpr int kEarlyBytes = 1024;    // of a row, while the kernel before ends; 4096 were slower

// A kind of weight has
//   kWarps of a block, as many blocks as make 16 warps of a multiprocessor; kPieces of a step,
//   kStages steps in the ring; kHasOneRow, of x; kIsGated;
//   kXVectors of x for 16 bytes of weight;
//   kEndBytes of a piece for what else comes with weight, and Ends, what a lane copies of it;
//   WeightOf a problem, Bytes of so many factors, a multiple of a step's for each row;
//   Add, which adds the products of 16 bytes of two rows of weight and of x to sums, of type Sum.

struct NoEnds {
  __device__ explicit NoEnds(const TileProblem&) {}
  __device__ void Copy(uint32_t, uint32_t) const {}
  __device__ void NextTile() {}
};

template <typename Kind>
struct RingShape {
  static constexpr int kBlocks = 16 / Kind::kWarps;  // of a multiprocessor
  static constexpr int kThreads = 32 * Kind::kWarps;
  static constexpr int kResults = Kind::kIsGated ? 8 : 16;  // of a tile
  // What lies in a piece: weight, its ends, x.
  static constexpr int kEnds = kRingRows * kRingPieceBytes, kX = kEnds + Kind::kEndBytes;
  static constexpr int kPiece = kX + (Kind::kHasOneRow ? kRingPieceBytes * Kind::kXVectors : 0);
  static constexpr int kStepBytes = Kind::kPieces * kRingPieceBytes;  // of a row
  static constexpr int kStage = Kind::kPieces * kPiece, kRing = Kind::kStages * kStage;
  static constexpr int kSharedBytes = Kind::kWarps * kRing;
  static constexpr int kApart = Kind::kWarps * kStepBytes;  // from a step of a warp to its next

  // Of a row, by this warp; and on by kApart.
  __device__ static uint32_t FirstByte() { return threadIdx.x / 32 * kStepBytes; }
};

// The copies of a warp.
template <typename Kind>
class WeightRing {
  using Shape = RingShape<Kind>;

 public:
  __device__ WeightRing(const TileProblem& p, uint32_t ring)
      : ring_(ring),
        bytes_(Kind::Bytes(p.K)),
        tiles_(at_ < bytes_ ? p.N / Shape::kResults : 0),
        x_(static_cast<const uint8_t*>(p.x) + XByte()),
        rows_(Kind::WeightOf(p) + (int64_t{blockIdx.x} * Shape::kResults + Lane() / 4) * bytes_ +
              Lane() % 4 * 16),
        to_high_((Kind::kIsGated ? int64_t{p.N} : 8) * bytes_),
        to_next_tile_(int64_t{gridDim.x} * Shape::kResults * bytes_),
        ends_(p) {
#pragma unroll 1
    for (int i = 0; i < Kind::kStages; ++i) Copy();
  }
  // Waits for the oldest step; where it is.
  __device__ uint32_t Wait() const {
    WaitForCopies<Kind::kStages - 1>();
    if (kIsShared) __syncwarp();
    return stage_;
  }
  // To where the oldest step was, once all lanes have read it.
  __device__ void Next() {
    if (kIsShared) __syncwarp();
    Copy();
  }

 private:
  static constexpr bool kIsShared = Kind::kEndBytes > 0 || Kind::kHasOneRow;  // by lanes

  __device__ static int Lane() { return threadIdx.x % 32; }
  // What a lane copies of a piece of x: vector j of those for 16 bytes of weight, which lie in the
  // order in which they are read, j first.
  __device__ static int XByte() { return 16 * (Lane() % (4 * Kind::kXVectors)); }
  __device__ static int XPlace() {
    return 16 * (Lane() / Kind::kXVectors % 4 + Lane() % Kind::kXVectors * 4);
  }

  __device__ void Copy() {
    if (tile_ < tiles_) {
      const uint8_t *low = rows_ + at_, *high = low + to_high_;
#pragma unroll
      for (int i = 0; i < Kind::kPieces; ++i) {
        const uint32_t to = stage_ + i * Shape::kPiece;
        CopyOnce(to + 16 * Lane(), low + i * kRingPieceBytes);
        CopyOnce(to + 16 * Lane() + 512, high + i * kRingPieceBytes);
        ends_.Copy(at_ / kRingPieceBytes + i, to + Shape::kEnds);
        if (Kind::kHasOneRow && Lane() < 4 * Kind::kXVectors)
          CopyKept(to + Shape::kX + XPlace(), x_ + Kind::kXVectors * (at_ + i * kRingPieceBytes));
      }
      if ((at_ += Shape::kApart) >= bytes_) {
        at_ = Shape::FirstByte(), tile_ += gridDim.x;
        rows_ += to_next_tile_, ends_.NextTile();
      }
    }
    CommitCopies();
    stage_ += Shape::kStage;
    if (stage_ == ring_ + Shape::kRing) stage_ = ring_;
  }

  const uint32_t ring_;
  uint32_t stage_ = ring_;
  uint32_t tile_ = blockIdx.x, at_ = Shape::FirstByte();  // what comes next
  const uint32_t bytes_, tiles_;                          // of a row; with steps of this warp
  const uint8_t *const x_, *rows_;
  const int64_t to_high_, to_next_tile_;
  typename Kind::Ends ends_;
};

// What a lane multiplies of a step.
template <typename Kind>
struct RingStep {
  using Shape = RingShape<Kind>;
  uint32_t low[Kind::kPieces][4], high[Kind::kPieces][4], x[Kind::kPieces][Kind::kXVectors][4];

  __device__ void ReadX(const uint8_t* from) {
#pragma unroll
    for (int i = 0; i < Kind::kPieces; ++i)
#pragma unroll
      for (int j = 0; j < Kind::kXVectors; ++j) {
        const uint4 v = LoadNow(
            reinterpret_cast<const uint4*>(from + Kind::kXVectors * i * kRingPieceBytes + 16 * j));
        x[i][j][0] = v.x, x[i][j][1] = v.y, x[i][j][2] = v.z, x[i][j][3] = v.w;
      }
  }
  __device__ void ReadShared(uint32_t stage) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < Kind::kPieces; ++i) {
      const uint32_t from = stage + i * Shape::kPiece;
      LoadShared(low[i], from + 16 * lane), LoadShared(high[i], from + 16 * lane + 512);
      if (Kind::kHasOneRow)
#pragma unroll
        for (int j = 0; j < Kind::kXVectors; ++j)
          LoadShared(x[i][j], from + Shape::kX + 16 * (4 * j + lane % 4));
    }
  }
};

template <typename Kind>
__global__ __launch_bounds__(
    RingShape<Kind>::kThreads,
    RingShape<Kind>::kBlocks) void MultiplyByRing(const __grid_constant__ TileProblem p) {
  using Shape = RingShape<Kind>;
  using Sum = typename Kind::Sum;
  __shared__ Sum parts[2][Kind::kWarps][128];
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32;
  const int column = thread % kRingRows, row = thread / kRingRows;
  const uint32_t bytes = Kind::Bytes(p.K);
  if (thread < kRingRows) {
    const int of_other_half = thread < Shape::kResults ? 0 : p.N - Shape::kResults;
    const int64_t first = int64_t{blockIdx.x} * Shape::kResults + thread + of_other_half;
    FetchIntoSecondCache(Kind::WeightOf(p) + first * bytes,
                         bytes < kEarlyBytes ? bytes : kEarlyBytes);
  }
  WaitForWork();
  LetNextStart();
  WeightRing<Kind> stream(p, DynamicSharedAddress() + warp * Shape::kRing);
  const auto* x = static_cast<const uint8_t*>(p.x) +
                  Kind::kXVectors * (int64_t{Lesser(lane / 4, p.rows - 1)} * bytes + lane % 4 * 16);
  const bool is_mine = row < p.rows && column < Shape::kResults;
  const float row_scale = is_mine ? RowScale(p, row) : 0;
  int turn = 0;
  for (int tile = blockIdx.x; tile < p.N / Shape::kResults; tile += gridDim.x, turn ^= 1) {
    const int n = tile * Shape::kResults + column;
    const ColumnEnd end = is_mine ? EndOf(p, 0, n) : ColumnEnd{};
    Sum sums[4] = {};
    for (uint32_t at = Shape::FirstByte(); at < bytes; at += Shape::kApart) {
      RingStep<Kind> step;
      if (!Kind::kHasOneRow) step.ReadX(x + Kind::kXVectors * at);
      const uint32_t stage = stream.Wait();
      step.ReadShared(stage);
#pragma unroll
      for (int i = 0; i < Kind::kPieces; ++i)
        Kind::Add(p, step.low[i], step.high[i], step.x[i], stage + i * Shape::kPiece + Shape::kEnds,
                  sums);
      stream.Next();
    }
#pragma unroll
    for (int c = 0; c < 4; ++c) parts[turn][warp][4 * lane + c] = sums[c];
    __syncthreads();  // and whoever adds parts of the tile before has done so
    if (!is_mine) continue;
    const auto total = [&](int of_column) {
      const int of = (row / 2 + of_column % 8 * 4) * 4 + row % 2 + of_column / 8 * 2;
      Sum sum = 0;
#pragma unroll
      for (int w = 0; w < Kind::kWarps; ++w) sum += parts[turn][w][of];
      return static_cast<float>(sum);
    };
    float result = Finish(total(column), row_scale, end);
    if (Kind::kIsGated) result = Activate(p.activation, result) * total(column + 8);
    StoreOne(p.result, p.out, row * int64_t{p.N} + n, result);
  }
}

template <typename Kind>
int32_t StartRing(AnyopCall* call, const TileProblem& p, int multiprocessors) {
  using Shape = RingShape<Kind>;
  constexpr auto kernel = MultiplyByRing<Kind>;
  if (int32_t status = AllowShared<kernel>(call, Shape::kSharedBytes)) return status;
  const int tiles = p.N / Shape::kResults, most = Shape::kBlocks * multiprocessors;
  const Launch launch{dim3(static_cast<unsigned>(tiles < most ? tiles : most)),
                      dim3(Shape::kThreads), Shape::kSharedBytes, true};
  return launch.Run(call, kernel, p);
}

// Blocks of 16 warps where a row is long (Kinds::LongRow of so many rows of x, in bytes), or where
// so many tiles would share out worse among twice as many blocks. Kinds::Of one row or more, and so
// many warps.
template <typename Kinds>
int32_t RunByRing(AnyopCall* call, const TileProblem& p) {
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  const int all = limits.multiprocessors;
  const int tiles = p.N / RingShape<typename Kinds::template Of<true, 16>>::kResults;
  const int bytes = Kinds::template Of<true, 16>::Bytes(p.K);
  const bool is_uneven = tiles > all && 2 * CeilDiv(tiles, 2 * all) > CeilDiv(tiles, all);
  const bool is_wide = bytes % RingShape<typename Kinds::template Of<true, 16>>::kStepBytes == 0 &&
                       (bytes >= Kinds::LongRow(p.rows) || (is_uneven && bytes >= 2048));
  if (p.rows == 1)
    return is_wide ? StartRing<typename Kinds::template Of<true, 16>>(call, p, all)
                   : StartRing<typename Kinds::template Of<true, 8>>(call, p, all);
  return is_wide ? StartRing<typename Kinds::template Of<false, 16>>(call, p, all)
                 : StartRing<typename Kinds::template Of<false, 8>>(call, p, all);
}

}  // namespace
}  // namespace anyop::cuda
