// SPDX-License-Identifier: Apache-2.0
// Products of few rows on Hopper, bound by the bytes of weight: wgmma's 64 rows are weight's, its
// columns rows of x.
//
// A cluster of up to 8 blocks computes a tile, 64 or 128 rows of weight by 16 to 64 of x: each
// block sums its own part of K. Blocks send their sums to one another's shared memory; block r adds
// those of its 1 / blocks of the tile's rows in the order of blocks, so the same bits come each
// time, and stores them. Clusters are persistent: one warp loads the stages of the tiles to come
// while the others add.
#pragma once

#include <algorithm>
#include <atomic>

#include "tile_sm90.h"

namespace anyop::cuda {
namespace {

template <Operand kType, TileForm kForm, int kTokens>
struct ThinShape {
  static constexpr bool kScaled = kForm == TileForm::kBlocks, kGated = kForm == TileForm::kGated;
  static constexpr int kGroups = kGated || kTokens > 32 ? 2 : 1;  // warpgroups that multiply
  static constexpr int kBoxes = kGroups == 2 ? 2 : 4;             // 128 bytes of k, in a stage
  static constexpr int kResultRows = kGated ? 64 : 64 * kGroups;
  static constexpr int kDepth = kBoxes * 128 / BytesOf(kType);
  static constexpr uint32_t kWeightBytes = kGroups * 64 * 128, kXBytes = kTokens * 128;
  static constexpr uint32_t kStageBytes = kBoxes * (kWeightBytes + kXBytes);
  static constexpr uint32_t kReceivedBytes = kGroups * 64 * kTokens * 4;
  static constexpr uint32_t kMostBytes = 227 * 1024;
  static constexpr int kScales = kScaled ? kBoxes * kTokens : 0;  // of a stage
  static constexpr int kStages =
      (kMostBytes - 256 - 2 * kReceivedBytes) / (kStageBytes + 4 * kScales);
  static constexpr int kThreads = 128 * (1 + kGroups);
  static constexpr uint32_t kSharedBytes =
      kStages * (kStageBytes + 4 * kScales) + 2 * kReceivedBytes + 256;
};

// A sum as it is sent.
__device__ inline float Bits(float sum) { return sum; }
__device__ inline float Bits(int sum) { return __int_as_float(sum); }
__device__ inline int LogOf(int power_of_two) { return __ffs(power_of_two) - 1; }

// The sums of a tile, 64 rows of weight for each of kGroups warpgroups by kTokens, of which every
// block of a cluster has those of its own part of K, and each kGroups of its warpgroups those of a
// part of that. Block r gets and adds those of rows r * rows() to r * rows() + rows() - 1 of each
// 64, in the order of parts.
template <typename Sum, int kGroups, int kTokens, int kParts = 1>
class ClusterSums {
 public:
  static constexpr uint32_t kBytes = kParts * kGroups * 64 * kTokens * 4;  // of a buffer, of two
  static constexpr int kAdders = 128 * kGroups * kParts;

  // Buffers, where they begin in shared memory, and two barriers of one arrival behind each other.
  __device__ ClusterSums(uint8_t* buffers, uint32_t barriers, int rank, int blocks)
      : buffers_(buffers),
        barriers_(barriers),
        rank_(rank),
        blocks_(blocks),
        shift_(LogOf(64 / blocks)) {}
  __device__ int shift() const { return shift_; }
  __device__ int rows() const { return 1 << shift_; }

  // By all threads that have sums, kAdders behind the first 128; what they read before is written
  // over two tiles later.
  __device__ void Exchange(const Sum (&sums)[kTokens / 2]) {
    const int adder = threadIdx.x - 128, w = adder / 128, thread = adder & 127, lane = adder & 31;
    const uint32_t which = turn_ & 1, barrier = barriers_ + 8 * which;
    received_ = buffers_ + which * kBytes;
    // All blocks have read what they were sent two tiles ago: each has sent since.
    MeetAt(1, kAdders);
    if (blocks_ > 1 && adder == 0) ArriveForBytes(barrier, kBytes);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = thread / 32 * 16 + lane / 4 + 8 * half, owner = row >> shift_;
      const uint32_t mine = (rank_ * kParts * kGroups + w) * rows() * kTokens * 4 +
                            ((row & (rows() - 1)) * 8 + lane % 4 * 2) * 4;
      if (blocks_ > 1) {
        const uint32_t to = PeerAddress(SharedAddress(received_) + mine, owner);
        const uint32_t at_barrier = PeerAddress(barrier, owner);
#pragma unroll
        for (int j = 0; j < kTokens / 8; ++j)
          SendTwo(to + j * rows() * 32, at_barrier, Bits(sums[4 * j + 2 * half]),
                  Bits(sums[4 * j + 2 * half + 1]));
      } else {
#pragma unroll
        for (int j = 0; j < kTokens / 8; ++j)
          *reinterpret_cast<float2*>(received_ + mine + j * rows() * 32) =
              make_float2(Bits(sums[4 * j + 2 * half]), Bits(sums[4 * j + 2 * half + 1]));
      }
    }
    if (blocks_ > 1)
      WaitForCluster(barrier, turn_ / 2 & 1);
    else
      MeetAt(1, kAdders);
    ++turn_;
  }
  // Of row `row` of those that this block adds, of a group's.
  __device__ Sum Of(int group, int row, int token) const {
    const Sum* of = reinterpret_cast<const Sum*>(received_) + (token / 8 * rows() + row) * 8 +
                    token % 8 + group * rows() * kTokens;
    Sum sum = 0;
    for (int b = 0; b < blocks_ * kParts; ++b) sum += of[b * kGroups * rows() * kTokens];
    return sum;
  }

 private:
  uint8_t *const buffers_, *received_ = nullptr;
  const uint32_t barriers_;
  const int rank_, blocks_, shift_;
  uint32_t turn_ = 0;
};

template <Operand kType, TileForm kForm, int kTokens>
__global__ __launch_bounds__((ThinShape<kType, kForm, kTokens>::kThreads),
                             1) void MultiplyThin(const __grid_constant__ CUtensorMap x_map,
                                                  const __grid_constant__ CUtensorMap weight_map,
                                                  const __grid_constant__ TileProblem p,
                                                  const int blocks) {
  using Shape = ThinShape<kType, kForm, kTokens>;
  using Sum = typename SumOf<kType>::Type;
  uint8_t* const shared = SharedTiles();
  const uint32_t ring = SharedAddress(shared);
  constexpr uint32_t kReceived = Shape::kStages * Shape::kStageBytes;
  const uint32_t full = ring + kReceived + 2 * Shape::kReceivedBytes;
  const uint32_t empty = full + 8 * Shape::kStages, sent = empty + 8 * Shape::kStages;
  auto* const scales =
      reinterpret_cast<float*>(shared + kReceived + 2 * Shape::kReceivedBytes + 256);
  const int rank = static_cast<int>(ClusterRank());
  if (threadIdx.x == 0) {
    for (int i = 0; i < Shape::kStages; ++i) {
      InitBarrier(full + 8 * i, Shape::kScaled ? 33 : 1);  // with what brings scales
      InitBarrier(empty + 8 * i, Shape::kScaled ? 4 * Shape::kGroups : Shape::kGroups);
    }
    InitBarrier(sent, 1), InitBarrier(sent + 8, 1);
    FenceBarriers();
    PrefetchMap(&x_map), PrefetchMap(&weight_map);
  }
  ClusterSync();
  const int columns = (p.N + Shape::kResultRows - 1) / Shape::kResultRows;
  const int steps = (p.K + Shape::kDepth - 1) / Shape::kDepth;
  const int first = steps * rank / blocks, last = steps * (rank + 1) / blocks;
  constexpr int kBox = 128 / BytesOf(kType);
  TilePlace place;
  RingPlace<Shape::kStages> at;
  if (threadIdx.x < 32) {
    if (!p.offsets && !p.counts && threadIdx.x == 0 &&
        static_cast<int>(ClusterIndex()) < columns)  // another kernel may still write weight: not
      for (int k = first; k < min(last, first + Shape::kStages); ++k)  // to shared memory
        for (int h = 0; h < Shape::kBoxes; ++h)
          PrefetchBox(&weight_map, (k * Shape::kBoxes + h) * kBox,
                      ClusterIndex() * Shape::kResultRows);
    WaitForWork();
    const uint64_t once = ReadOnce(), by_all = ReadByAll();
    TileWalk walk(p, kTokens, columns, 1024);
    for (int tile = ClusterIndex(); walk.Find(tile, &place); tile += ClusterCount()) {
      if (threadIdx.x == 0) {
        const int row =
            place.column * Shape::kResultRows + place.expert * p.N * (Shape::kGated ? 2 : 1);
        const int other = Shape::kGated ? p.N : 64;  // from the first warpgroup's row on
        for (int k = first; k < last; ++k, at.Next()) {
          const uint32_t stage = ring + at.stage * Shape::kStageBytes,
                         barrier = full + 8 * at.stage;
          WaitAt(empty + 8 * at.stage, at.parity ^ 1);
          ArriveForBytes(barrier, Shape::kStageBytes);
#pragma unroll
          for (int h = 0; h < Shape::kBoxes; ++h) {
            const int from = (k * Shape::kBoxes + h) * kBox;
            const uint32_t w = stage + h * Shape::kWeightBytes;
            LoadBox(w, &weight_map, barrier, from, row, once);
            if (Shape::kGroups == 2)
              LoadBox(w + 64 * 128, &weight_map, barrier, from, row + other, once);
            LoadBox(stage + Shape::kBoxes * Shape::kWeightBytes + h * Shape::kXBytes, &x_map,
                    barrier, from, place.row, by_all);
          }
        }
      }
      __syncwarp();
    }
    LetNextStart();
  } else if (Shape::kScaled && threadIdx.x < 64) {  // the product of both scales, for each row of x
    WaitForWork();
    const int lane = threadIdx.x & 31, blocks_of_k = (p.K + 127) / 128;
    TileWalk walk(p, kTokens, columns, 1024);
    for (int tile = ClusterIndex(); walk.Find(tile, &place); tile += ClusterCount()) {
      const float* of_x = p.x_scale + place.expert * p.x_scale_expert;
      const float* of_weight =
          p.weight_scale + place.expert * p.weight_scale_expert +
          Lesser(place.column * Shape::kResultRows, p.N - 1) / 128 * p.weight_scale_row;
      for (int k = first; k < last; ++k, at.Next()) {
        WaitAt(empty + 8 * at.stage, at.parity ^ 1);
#pragma unroll
        for (int i = lane; i < Shape::kScales; i += 32) {
          const int row = Lesser(place.row + i % kTokens, place.end - 1);
          const int block = Lesser(k * Shape::kBoxes + i / kTokens, blocks_of_k - 1);
          scales[at.stage * Shape::kScales + i] =
              of_x[row * p.x_scale_row + block * p.x_scale_k] * of_weight[block * p.weight_scale_k];
        }
        Arrive(full + 8 * at.stage);
      }
    }
  } else if (threadIdx.x >= 64 && threadIdx.x < 128) {
    WaitForWork();
    TileWalk(p, kTokens, columns, 1024).ZeroRest(threadIdx.x - 64, 64);
  } else if (threadIdx.x >= 128) {
    WaitForWork();
    constexpr int kAdders = 128 * Shape::kGroups, kSums = kTokens / 2;
    const int adder = threadIdx.x - 128, w = adder / 128, thread = adder & 127, lane = adder & 31;
    ClusterSums<Sum, Shape::kGroups, kTokens> all(shared + kReceived, sent, rank, blocks);
    TileWalk walk(p, kTokens, columns, 1024);
    for (int tile = ClusterIndex(); walk.Find(tile, &place); tile += ClusterCount()) {
      const int left = place.column * Shape::kResultRows;
      Sum sums[kSums];
      if constexpr (!Shape::kScaled) {
        uint32_t before = 0;
        for (int k = first; k < last; ++k, at.Next()) {
          WaitAt(full + 8 * at.stage, at.parity);
          const uint32_t stage = ring + at.stage * Shape::kStageBytes;
          FenceProducts();
#pragma unroll
          for (int h = 0; h < Shape::kBoxes; ++h)
#pragma unroll
            for (int i = 0; i < 4; ++i)
              Product<kTokens>::template Add<kType>(
                  sums, TileOf(stage + h * Shape::kWeightBytes + w * 64 * 128) + 2 * i,
                  TileOf(stage + Shape::kBoxes * Shape::kWeightBytes + h * Shape::kXBytes) + 2 * i,
                  k - first + h + i);
          CommitProducts();
          WaitForProducts<1>();
          if (k > first && thread == 0) Arrive(empty + 8 * before);
          before = at.stage;
        }
        WaitForProducts<0>();
        Pin(sums);
        if (thread == 0) Arrive(empty + 8 * before);
      } else {
#pragma unroll
        for (int i = 0; i < kSums; ++i) sums[i] = 0;
        for (int k = first; k < last; ++k, at.Next()) {
          Sum part[Shape::kBoxes][kSums];
          WaitAt(full + 8 * at.stage, at.parity);
          const uint32_t stage = ring + at.stage * Shape::kStageBytes;
          FenceProducts();
#pragma unroll
          for (int h = 0; h < Shape::kBoxes; ++h)
#pragma unroll
            for (int i = 0; i < 4; ++i)
              Product<kTokens>::template Add<kType>(
                  part[h], TileOf(stage + h * Shape::kWeightBytes + w * 64 * 128) + 2 * i,
                  TileOf(stage + Shape::kBoxes * Shape::kWeightBytes + h * Shape::kXBytes) + 2 * i,
                  i);
          CommitProducts();
          WaitForProducts<0>();
#pragma unroll
          for (int h = 0; h < Shape::kBoxes; ++h) {
            Pin(part[h]);
            const float* of = scales + (at.stage * Shape::kBoxes + h) * kTokens + lane % 4 * 2;
#pragma unroll
            for (int j = 0; j < kSums; j += 4) {
              const float2 two = *reinterpret_cast<const float2*>(of + 2 * j);
              sums[j] = MulAdd(part[h][j], two.x, sums[j]);
              sums[j + 1] = MulAdd(part[h][j + 1], two.y, sums[j + 1]);
              sums[j + 2] = MulAdd(part[h][j + 2], two.x, sums[j + 2]);
              sums[j + 3] = MulAdd(part[h][j + 3], two.y, sums[j + 3]);
            }
          }
          __syncwarp();
          if (lane == 0) Arrive(empty + 8 * at.stage);
        }
      }

      all.Exchange(sums);
      constexpr int kHalves = Shape::kGated ? 1 : Shape::kGroups;
      for (int i = adder; i < kHalves * all.rows() * kTokens; i += kAdders) {
        const int r = i & (all.rows() - 1), half = (i >> all.shift()) % kHalves;
        const int token = (i >> all.shift()) / kHalves;
        const int n = left + half * 64 + rank * all.rows() + r, row = place.row + token;
        if (row >= place.end || n >= p.N) continue;
        float v = static_cast<float>(all.Of(half, r, token));
        if constexpr (Shape::kGated) {
          const float other = all.Of(1, r, token);
          if (p.pre) {
            StoreOne(p.result, p.pre, row * (2 * int64_t{p.N}) + n, v);
            StoreOne(p.result, p.pre, row * (2 * int64_t{p.N}) + p.N + n, other);
          }
          v = Activate(p.activation, v) * other;
        } else {
          v = Finish(v, RowScale(p, row), EndOf(p, place.expert, n));
        }
        StoreOne(p.result, p.out, row * int64_t{p.N} + n, v);
      }
    }
  }
  __syncwarp();
  ClusterSync();
}

// ---- host ----

// What stages take, in microseconds on an H100, fitted to 950 products of each choice
// (bench/gpu/cuda_choices.py): a stage of the tiles and what a round of them costs beside its
// stages; a thin stage of 16, 32, 64 tokens and a round of 1, 2, 4, 8 blocks a cluster; bytes per
// microsecond that the tiles, thin tiles of the same weight and thin tiles of weight that is read
// once get; how much later tiles, and clusters of more than one block, start.
struct StageTimes {
  double tile, tile_round, thin[3], thin_round[4];
  double tile_bytes, again_bytes, once_bytes, tile_start, cluster_start;
};
constexpr StageTimes kTimesOf16Bits = {
    0.655, 2.85, {0.347, 0.579, 0.789}, {1.46, 2.07, 1.54, 1.52}, 6.2e6, 5.8e6, 4.3e6, 0.57, 0.66};
constexpr StageTimes kTimesOf8Bits = {
    0.64, 0.87, {0.348, 0.46, 1.09}, {1.55, 2.71, 1.75, 1.34}, 4.6e6, 4.05e6, 4.7e6, 0, 0};
constexpr StageTimes kTimesOfBlocks = {
    0.963, 0, {0.319, 0.562, 0.957}, {2.42, 3.23, 2.38, 2.25}, 4.3e6, 5.8e6, 5.9e6, 0, 0};
template <Operand kType, TileForm kForm>
constexpr StageTimes kTimesOf = kForm == TileForm::kBlocks ? kTimesOfBlocks
                                : BytesOf(kType) == 1      ? kTimesOf8Bits
                                                           : kTimesOf16Bits;

// Rows of a segment, on average.
inline int64_t SegmentRows(const TileProblem& p) {
  return p.offsets || p.counts ? CeilDiv(p.rows, p.experts) : p.rows;
}
// Rows of nearly every segment, where their numbers are drawn: of 16 bits half more than the mean.
template <Operand kType>
int64_t LikelyRows(const TileProblem& p) {
  const int64_t rows = SegmentRows(p);
  return BytesOf(kType) == 2 && p.offsets ? rows * 3 / 2 : rows;
}
// Segments with rows, at most.
inline int64_t SegmentCount(const TileProblem& p) {
  return p.offsets || p.counts ? std::min(p.experts, p.rows) : 1;
}

// Of 2^i blocks a cluster, where so many clusters run at once.
template <Operand kType, TileForm kForm, int kTokens>
double ThinTime(const TileProblem& p, int i, int64_t clusters) {
  using Shape = ThinShape<kType, kForm, kTokens>;
  constexpr StageTimes kTimes = kTimesOf<kType, kForm>;
  const int64_t tiles = CeilDiv(p.N, Shape::kResultRows) * SegmentCount(p) *
                        CeilDiv(LikelyRows<kType>(p), int64_t{kTokens});
  const auto blocks = static_cast<double>(std::min(tiles, clusters) << i);
  const double rate = LikelyRows<kType>(p) > kTokens ? kTimes.again_bytes : kTimes.once_bytes;
  const double stage = std::max(kTimes.thin[kTokens / 32], Shape::kStageBytes * blocks / rate);
  const auto stages = static_cast<double>(CeilDiv(CeilDiv(p.K, Shape::kDepth), int64_t{1} << i));
  return (i > 0 ? kTimes.cluster_start : 0) +
         static_cast<double>(CeilDiv(tiles, clusters)) * (stages * stage + kTimes.thin_round[i]);
}

// How many such clusters the device runs at once; asked for once.
template <typename... Arguments>
int32_t ClustersOf(AnyopCall* call, void (*kernel)(Arguments...), const Launch& launch,
                   std::atomic<int>* known, int* count) {
  *count = known->load(std::memory_order_relaxed) - 1;
  if (*count >= 0) return kAnyopOk;
  Launch alone = launch;
  alone.overlaps = false;
  if (int32_t status = alone.CountClusters(call, kernel, count)) return status;
  known->store(*count + 1, std::memory_order_relaxed);
  return kAnyopOk;
}

template <Operand kType, TileForm kForm, int kTokens>
int32_t RunThin(AnyopCall* call, const TileProblem& p) {
  using Shape = ThinShape<kType, kForm, kTokens>;
  if (p.rows == 0 || p.N == 0) return kAnyopOk;
  CUtensorMap x, weight;
  const int64_t weight_rows = int64_t{p.experts} * p.N * (Shape::kGated ? 2 : 1);
  if (!TakesTma(p, kType) || !EncodeRows(&x, kType, p.x, p.rows, p.K, kTokens) ||
      !EncodeRows(&weight, kType, p.weight, weight_rows, p.K, 64))
    return DeclineTma(call);
  constexpr auto kernel = MultiplyThin<kType, kForm, kTokens>;
  if (int32_t status = AllowShared<kernel>(call, Shape::kSharedBytes)) return status;
  static std::atomic<int> known[64][4];
  const int64_t steps = CeilDiv(p.K, Shape::kDepth);
  const int64_t tiles = CeilDiv(p.N, Shape::kResultRows) *
                        (p.offsets || p.counts ? p.experts : CeilDiv(p.rows, kTokens));
  Launch best{dim3(0), dim3(Shape::kThreads), Shape::kSharedBytes, true, 1};
  double least = 0;
  const int asked = AnyopChoice(call) - 1;
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  for (int i = 0; i < 4 && 1 << i <= steps; ++i) {
    int clusters = limits.multiprocessors;
    Launch launch = best;
    launch.cluster = 1 << i;
    launch.grid = dim3(1 << i);
    if (i > 0)
      if (int32_t status =
              ClustersOf(call, kernel, launch, &known[call->device_id & 63][i], &clusters))
        return status;
    if (clusters == 0) continue;
    const double time = ThinTime<kType, kForm, kTokens>(p, i, clusters);
    if (i > 0 && asked != i && time >= least) continue;
    const int64_t used = tiles < clusters ? tiles : clusters;
    best.cluster = 1 << i;
    best.grid = dim3(static_cast<unsigned>(used << i));
    least = asked == i ? 0 : time;
  }
  return best.Run(call, kernel, x, weight, p, best.cluster);
}

}  // namespace
}  // namespace anyop::cuda
