// SPDX-License-Identifier: Apache-2.0
// Sorts slots by their experts on CUDA, for moe_sort, moe_align and fused_moe: one launch of one
// block up to 2,048 slots, above it two of a block for each 2,048. The host waits for nothing.
//
// A block holds the experts of its slots in shared memory. Its 1,024 threads are (part, expert): a
// thread reads the slots of its part, 4 at a time, and counts those of its expert; sums over
// experts and parts before say where it begins, and it reads the part again to write them. So the
// order is that of the slots, without atomics. Of several blocks each adds up the counts of all.
#pragma once

#include "anyop/cuda.h"

namespace anyop::cuda {
namespace {

struct SlotSort {
  const int32_t *ids, *expert_map;  // expert_map: known, or NULL
  int slots, known, experts, block;
  int32_t* order;          // room
  int32_t* inverse;        // slots, or NULL
  int32_t* offsets;        // experts + 1, or NULL
  int32_t* block_experts;  // blocks, or NULL
  int32_t* padded_count;   // 1, or NULL
  int room, blocks, rest;  // rest: what stands in order where no slot is
  int32_t* counts;         // (gridDim.x, experts); where there are several blocks
};

constexpr int kSortTile = 2048, kSortBlock = 1024, kMostSortedExperts = 1024;

struct SortMemory {
  uint4 experts[kSortTile / 4];
  int32_t begins[kSortBlock];  // (part, expert): counts, then where the part begins
  int32_t starts[kMostSortedExperts + 1], ends[kMostSortedExperts];
  int32_t sums[32];
};

__device__ inline int ExpertOf(const SlotSort& p, int slot) {
  int id = p.ids[slot];
  if (id < 0 || id >= p.known) return -1;
  if (p.expert_map) id = p.expert_map[id];
  return id >= 0 && id < p.experts ? id : -1;
}

// Experts rounded up to a power of two, from 32.
__device__ inline int PaddedExperts(int experts) {
  int padded = 32;
  while (padded < experts) padded *= 2;
  return padded;
}

// Calls visit(slot of the tile) for the slots of this thread's part and expert, in their order.
template <typename Visit>
__device__ void ForMine(const SortMemory& m, int part, int parts, int expert, const Visit& visit) {
  const int pieces = kSortTile / 4 / parts;
  for (int i = part * pieces; i < (part + 1) * pieces; ++i) {
    const uint4 four = m.experts[i];
    if (static_cast<int>(four.x) == expert) visit(4 * i);
    if (static_cast<int>(four.y) == expert) visit(4 * i + 1);
    if (static_cast<int>(four.z) == expert) visit(4 * i + 2);
    if (static_cast<int>(four.w) == expert) visit(4 * i + 3);
  }
}

// Counts of each (part, expert) of this block's tile.
__device__ inline void CountTile(const SlotSort& p, SortMemory& m) {
  const int thread = threadIdx.x, padded = PaddedExperts(p.experts);
  auto* experts = reinterpret_cast<int32_t*>(m.experts);
  for (int i = thread; i < kSortTile; i += kSortBlock) {
    const int64_t slot = int64_t{blockIdx.x} * kSortTile + i;
    experts[i] = slot < p.slots ? ExpertOf(p, static_cast<int>(slot)) : -1;
    if (slot < p.slots && p.inverse && experts[i] < 0) p.inverse[slot] = -1;
  }
  __syncthreads();
  int count = 0;
  ForMine(m, thread / padded, kSortBlock / padded, thread % padded, [&](int) { ++count; });
  m.begins[thread] = count;
  __syncthreads();
}

__global__ void __launch_bounds__(kSortBlock) CountSlots(const __grid_constant__ SlotSort p) {
  __shared__ SortMemory m;
  CountTile(p, m);
  const int padded = PaddedExperts(p.experts), e = threadIdx.x;
  if (e >= p.experts) return;
  int count = 0;
  for (int part = 0; part < kSortBlock / padded; ++part) count += m.begins[part * padded + e];
  p.counts[int64_t{blockIdx.x} * p.experts + e] = count;
}

// The sum of v over the threads before this one.
__device__ inline int SumBefore(SortMemory& m, int v) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int sum = v;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int before = __shfl_up_sync(~0u, sum, step);
    if (lane >= step) sum += before;
  }
  if (lane == 31) m.sums[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    int of_warps = m.sums[lane];
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int before = __shfl_up_sync(~0u, of_warps, step);
      if (lane >= step) of_warps += before;
    }
    m.sums[lane] = of_warps;
  }
  __syncthreads();
  return sum - v + (warp ? m.sums[warp - 1] : 0);
}

__global__ void __launch_bounds__(kSortBlock) PlaceSlots(const __grid_constant__ SlotSort p) {
  __shared__ SortMemory m;
  CountTile(p, m);
  const int thread = threadIdx.x, padded = PaddedExperts(p.experts);
  const int parts = kSortBlock / padded;
  int all = 0, before = 0;  // slots of this thread's expert; those of the tiles before
  if (thread < p.experts) {
    if (p.counts) {
      for (unsigned tile = 0; tile < gridDim.x; ++tile) {
        const int count = p.counts[int64_t{tile} * p.experts + thread];
        all += count;
        if (tile < blockIdx.x) before += count;
      }
    } else {
      for (int part = 0; part < parts; ++part) all += m.begins[part * padded + thread];
    }
  }
  const int whole = (all + p.block - 1) / p.block * p.block, start = SumBefore(m, whole);
  if (thread < p.experts) {
    m.starts[thread] = start;
    m.ends[thread] = start + all;
    if (thread == p.experts - 1) m.starts[p.experts] = start + whole;
    int begin = start + before;
    for (int part = 0; part < parts; ++part) {
      const int count = m.begins[part * padded + thread];
      m.begins[part * padded + thread] = begin;
      begin += count;
    }
  }
  __syncthreads();
  int at = m.begins[thread];
  ForMine(m, thread / padded, parts, thread % padded, [&](int i) {
    const int slot = static_cast<int>(blockIdx.x) * kSortTile + i;
    p.order[at] = slot;
    if (p.inverse) p.inverse[slot] = at;
    ++at;
  });
  // What no slot fills, and the experts of blocks.
  const int step = static_cast<int>(gridDim.x) * kSortBlock, end = m.starts[p.experts];
  const int first = static_cast<int>(blockIdx.x) * kSortBlock + thread;
  for (int i = end + first; i < p.room; i += step) p.order[i] = p.rest;
  if (p.block > 1)
    for (int e = blockIdx.x; e < p.experts; e += gridDim.x)
      for (int i = m.ends[e] + thread; i < m.starts[e + 1]; i += kSortBlock) p.order[i] = p.rest;
  if (p.block_experts) {
    for (int e = blockIdx.x; e < p.experts; e += gridDim.x)
      for (int b = m.starts[e] / p.block + thread; b < m.starts[e + 1] / p.block; b += kSortBlock)
        p.block_experts[b] = e;
    for (int b = end / p.block + first; b < p.blocks; b += step) p.block_experts[b] = -1;
  }
  if (blockIdx.x) return;
  if (p.padded_count && thread == 0) *p.padded_count = end;
  if (p.offsets)
    for (int e = thread; e <= p.experts; e += kSortBlock) p.offsets[e] = m.starts[e];
}

inline int32_t RunSlotSort(AnyopCall* call, SlotSort p) {
  const int64_t tiles = CeilDiv(p.slots > 1 ? p.slots : 1, kSortTile);
  const Launch launch{dim3(static_cast<unsigned>(tiles)), dim3(kSortBlock)};
  p.counts = nullptr;
  if (tiles > 1) {
    p.counts = static_cast<int32_t*>(call->workspace(call, tiles * p.experts * 4));
    if (!p.counts) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
    if (int32_t status = launch.Run(call, CountSlots, p)) return status;
  }
  return launch.Run(call, PlaceSlots, p);
}

// Those of a call's ids; order ends with -1 for each of no expert.
template <typename Args>
int32_t SortSlotsOf(AnyopCall* call, const Args& args, int32_t* order, int32_t* inverse,
                    int32_t* offsets) {
  SlotSort p = {};
  p.ids = static_cast<const int32_t*>(args.ids->data);
  p.expert_map = args.expert_map ? static_cast<const int32_t*>(args.expert_map->data) : nullptr;
  p.slots = p.room = static_cast<int>(args.T * args.K);
  p.known = static_cast<int>(args.expert_map ? args.G : args.E);
  p.experts = static_cast<int>(args.E);
  p.block = 1, p.rest = -1;
  p.order = order, p.inverse = inverse, p.offsets = offsets;
  return RunSlotSort(call, p);
}

// Slots are counted in 32 bits.
inline int32_t CheckSlots(AnyopCall* call, int64_t slots) {
  if (slots < int64_t{1} << 30) return kAnyopOk;
  return call->fail(call, kAnyopValueError, "ids has 2^30 elements or more");
}

}  // namespace
}  // namespace anyop::cuda
