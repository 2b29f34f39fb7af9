// SPDX-License-Identifier: Apache-2.0
// Attention of few rows to pages on Hopper, where a few sequences decode: a call that ends soon
// after it starts.
//
// As attention_paged_few.h, but the blocks of a cluster share a sequence's keys, so that no second
// kernel joins parts. All of the cluster's warps take 16 keys in turn, so that who has a key
// follows from its number alone. A block sends its sums to those that write these features, which
// join them. Most of what runs runs once: what counts is how many instructions stand one behind
// another.
#pragma once

#include "anyop/cuda/hopper.h"
#include "attention_paged_few.h"

namespace anyop::cuda {
namespace {

#if ANYOP_PTX
constexpr int kClusterBlocks = 8;
#else
constexpr int kClusterBlocks = 1;  // fibers run a block at a time
#endif
// Which block of its cluster this is, and which cluster.
__device__ inline int2 PlaceInGrid() {
#if ANYOP_PTX
  return {static_cast<int>(ClusterRank()), static_cast<int>(ClusterIndex())};
#else
  return {0, static_cast<int>(blockIdx.x)};
#endif
}
// Behind FenceBarriers: others of the cluster see barriers, once they have waited.
__device__ inline void ArriveAtCluster() {
#if ANYOP_PTX
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ inline void WaitForBlocks() {
#if ANYOP_PTX
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}

// What the cluster's blocks send of the features that this one writes.
template <int kFeatures>
struct alignas(16) ClusterRoom {
  static constexpr int kShift = kFeatures == 128 ? 7 : 6;
  float values[kFewRows * kFeatures];     // (block, row, feature)
  float2 ends[kFewRows][kClusterBlocks];  // greatest score, sum of weights
  uint64_t barrier;

  __device__ void Send(const FewSums& of, int row, int feature, int rank, int shift) {
    const int width = kFeatures >> shift, owner = feature >> (kShift - shift),
              at = feature & (width - 1);
    float* const four = values + (rank * kFewRows + row) * width + at;
#if ANYOP_PTX
    const uint32_t at_barrier = PeerAddress(SharedAddress(&barrier), owner);
    const uint32_t to = PeerAddress(SharedAddress(four), owner);
    SendTwo(to, at_barrier, of.values[0], of.values[1]);
    SendTwo(to + 8, at_barrier, of.values[2], of.values[3]);
    if (at == 0)
      SendTwo(PeerAddress(SharedAddress(&ends[row][rank]), owner), at_barrier, of.most, of.sum);
#else
    *reinterpret_cast<float4*>(four) =
        make_float4(of.values[0], of.values[1], of.values[2], of.values[3]);
    if (at == 0) ends[row][rank] = make_float2(of.most, of.sum);
#endif
  }
};

// Feature e of a row, joined.
template <typename T, int kFeatures>
__device__ void WriteFromCluster(const FewView& p, const ClusterRoom<kFeatures>& room, int row,
                                 int at, int e, int b, int h) {
  const int width = kFeatures >> p.shift, blocks = 1 << p.shift;
  const float sink = p.sinks ? p.sinks[h] * 1.44269504088896340736f : -INFINITY;
  float most = sink, value = 0, tops[kClusterBlocks], sums[kClusterBlocks], values[kClusterBlocks];
#pragma unroll
  for (int block = 0; block < kClusterBlocks; ++block) {
    const bool is_there = block < blocks;
    const float2 end = room.ends[row][block];
    tops[block] = is_there ? end.x : -INFINITY, sums[block] = is_there ? end.y : 0;
    values[block] = is_there ? room.values[(block * kFewRows + row) * width + at] : 0;
    most = fmaxf(most, tops[block]);
  }
  const float base = most == -INFINITY ? 0 : most;
  float sum = PowerOfTwo(sink - base);
#pragma unroll
  for (int block = 0; block < kClusterBlocks; ++block) {
    const float share = PowerOfTwo(tops[block] - base);
    sum += sums[block] * share, value += values[block] * share;
  }
  static_cast<T*>(p.out)[int64_t{b} * p.out_token + int64_t{h} * p.out_head + e] =
      Narrow<T>(sum == 0 ? 0 : value * Reciprocal(sum));
  if (p.lse && e == 0)
    p.lse[int64_t{b} * p.lse_token + int64_t{h} * p.lse_head] =
        (most + log2f(sum)) * 0.69314718055994530942f;
}

// blockIdx: group and rank in the cluster, sequence.
template <typename T, int kFeatures>
__global__ __launch_bounds__(kFewThreads) void AttendFewInCluster(
    const __grid_constant__ FewView p) {
  using Warp = FewWarp<T, T, kFeatures>;
  __shared__ FewRoom<kFeatures> of_warps;
  __shared__ ClusterRoom<kFeatures> room;
  const int2 place = PlaceInGrid();
  const int rank = place.x, g = place.y, b = blockIdx.y;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
#if ANYOP_PTX
  if (threadIdx.x == 0) {
    const uint32_t barrier = SharedAddress(&room.barrier);
    InitBarrier(barrier, 1);
    FenceBarriers();
    ArriveForBytes(barrier, 4 * p.group * (kFeatures + (2 << p.shift)));
  }
  __syncwarp();
  ArriveAtCluster();
#endif
  const int step = kFewWarps * kFewKeys << p.shift;
  int t = ((warp << p.shift) + rank) * kFewKeys;
  WaitForWork();
  LetNextStart();
  int entry = p.EntryOf(b, t);  // before the length is there
  int end = p.lengths[b];
  Warp mine;
  mine.LoadQueries(p, b, g);
  end = __shfl_sync(~0u, end, 0);
  bool is_wrong = end < 0 || end > p.places;
  if (is_wrong) end = 0;
  const int first = std::max(0, end - 1 - p.left);
  if (t + kFewKeys <= first) t += (first - t) & -step, entry = p.EntryOf(b, t);
  bool is_first = true;
#pragma unroll 1
  do {
    const bool is_there = entry >= 0 && entry < p.N;
    is_wrong |= !is_there && t < end && t + kFewKeys > first;
    typename Warp::Loaded loaded;
    Warp::Load(p, p.At(is_there ? entry : 0, t, g), &loaded);
    const int begin = t;
    t += step;
    if (t < end) entry = p.EntryOf(b, t);
    mine.Add(p, loaded, begin, first, end, is_first);
    is_first = false;
  } while (t < end);
  mine.EndSum();
  of_warps.Keep(mine, warp, p.group, is_wrong);
  WaitForBlocks();
  __syncthreads();
#pragma unroll 1
  for (int i = threadIdx.x; i < p.group * (kFeatures / 4); i += kFewThreads) {
    const int row = i / (kFeatures / 4), feature = i % (kFeatures / 4) * 4;
    room.Send(of_warps.template Join<false>(row, feature), row, feature, rank, p.shift);
  }
#if ANYOP_PTX
  WaitForCluster(SharedAddress(&room.barrier), 0);
#else
  __syncthreads();
#endif
  const int width = kFeatures >> p.shift;
#pragma unroll 1
  for (int i = threadIdx.x; i < p.group * width; i += kFewThreads) {
    const int row = i >> (room.kShift - p.shift), at = i & (width - 1);
    WriteFromCluster<T, kFeatures>(p, room, row, at, rank * width + at, b, g * p.group + row);
  }
}

// ---- host ----

// The logarithm of the blocks of a cluster that run at once and have at most eight turns of keys;
// -1: these are better divided into parts. Clusters of more than two blocks leave some
// multiprocessors of a GPC idle: 128 blocks of 132 would take two turns.
inline int ShiftOfCluster(const PagedView& p, int64_t multiprocessors) {
  const int64_t clusters = int64_t{p.B} * p.G;
  int shift = ANYOP_PTX ? 3 : 0;
  while (shift > 1 && clusters << shift > multiprocessors * 3 / 4) --shift;
  const bool is_taken = clusters << shift <= multiprocessors &&
                        p.places <= int64_t{8 * kFewWarps * kFewKeys} << shift;
  return is_taken ? shift : -1;
}

template <typename T, int kFeatures>
int32_t RunInCluster(const PagedView& p, FewView view, int shift, AnyopCall* call) {
  view.shift = shift;
  const Launch launch = {dim3(static_cast<unsigned>(p.G) << shift, static_cast<unsigned>(p.B)),
                         dim3(kFewThreads), 0, true, 1 << shift};
  return launch.Run(call, AttendFewInCluster<T, kFeatures>, view);
}
template <typename T>
int32_t RunInCluster(const PagedView& p, const FewView& view, int shift, AnyopCall* call) {
  return p.D == 64 ? RunInCluster<T, 64>(p, view, shift, call)
                   : RunInCluster<T, 128>(p, view, shift, call);
}

}  // namespace
}  // namespace anyop::cuda
