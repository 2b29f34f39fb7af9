// SPDX-License-Identifier: Apache-2.0
// Sorts slots by their experts on CUDA, for moe_sort, moe_align and fused_moe: one launch of one
// block up to 2,048 slots, above it two of a block for each 2,048. The host waits for nothing.
//
// Lanes find those of their warp with the same expert by votes on the bits of its number, so a
// slot's place is where its expert begins, and the slots of the expert in the tiles, the warps and
// the lanes before it: the order of the slots, without atomics. Of several blocks each adds up the
// counts of all.
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

constexpr int kSortTile = 2048, kSortBlock = 512, kSortWarps = kSortBlock / 32;
constexpr int kSortItems = kSortTile / kSortBlock;  // slots of a lane
constexpr int kMostSortedExperts = 1024, kExpertsOfThread = kMostSortedExperts / kSortBlock;

struct SortMemory {
  uint16_t counts[kSortWarps * kMostSortedExperts];  // as CountsOf
  int32_t starts[kMostSortedExperts + 1], ends[kMostSortedExperts];
  int32_t begins[kMostSortedExperts];  // where this tile's slots of an expert begin
  int32_t sums[kSortWarps];
};

__device__ inline int ExpertOf(const SlotSort& p, int slot) {
  int id = p.ids[slot];
  if (id < 0 || id >= p.known) return -1;
  if (p.expert_map) id = p.expert_map[id];
  return id >= 0 && id < p.experts ? id : -1;
}

// Of the slots of a warp, by experts; then those of the warps before it.
__device__ inline uint16_t* CountsOf(const SlotSort& p, SortMemory& m, int warp) {
  return m.counts + warp * p.experts;
}

__device__ inline int64_t SlotAt(int item) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  return int64_t{blockIdx.x} * kSortTile + (warp * kSortItems + item) * 32 + lane;
}

// Lanes whose expert is this one's, where that is not -1.
__device__ inline unsigned LanesOfExpert(int expert, int experts) {
  unsigned same = __ballot_sync(~0u, expert >= 0);
  for (int bit = 0; 1 << bit < experts; ++bit) {
    const bool set = expert >> bit & 1;
    const unsigned votes = __ballot_sync(~0u, set);
    same &= set ? votes : ~votes;
  }
  return same;
}

struct OwnSlots {
  int experts[kSortItems], ranks[kSortItems];  // rank: slots of the expert before it in the warp
};

// Reads this thread's slots and counts those of each (warp, expert).
__device__ inline void CountTile(const SlotSort& p, SortMemory& m, OwnSlots* own) {
  for (int i = threadIdx.x; i < kSortWarps * p.experts; i += kSortBlock) m.counts[i] = 0;
#pragma unroll
  for (int i = 0; i < kSortItems; ++i) {
    const int64_t slot = SlotAt(i);
    const int expert = slot < p.slots ? ExpertOf(p, static_cast<int>(slot)) : -1;
    if (slot < p.slots && p.inverse && expert < 0) p.inverse[slot] = -1;
    own->experts[i] = expert;
  }
  __syncthreads();
  uint16_t* counts = CountsOf(p, m, threadIdx.x / 32);
#pragma unroll
  for (int i = 0; i < kSortItems; ++i) {
    const int expert = own->experts[i];
    const unsigned same = LanesOfExpert(expert, p.experts);
    const unsigned before = same & ((1u << threadIdx.x % 32) - 1);
    own->ranks[i] = expert < 0 ? 0 : counts[expert] + __popc(before);
    __syncwarp();
    if (expert >= 0 && before == 0) counts[expert] += static_cast<uint16_t>(__popc(same));
    __syncwarp();
  }
  __syncthreads();
}

// Of an expert, those of the whole tile; the warps' become sums of those before.
__device__ inline int AddWarps(const SlotSort& p, SortMemory& m, int expert) {
  int sum = 0;
#pragma unroll
  for (int warp = 0; warp < kSortWarps; ++warp) {
    uint16_t& own = CountsOf(p, m, warp)[expert];
    const int count = own;
    own = static_cast<uint16_t>(sum);
    sum += count;
  }
  return sum;
}

__global__ void __launch_bounds__(kSortBlock) CountSlots(const __grid_constant__ SlotSort p) {
  __shared__ SortMemory m;
  WaitForWork();
  LetNextStart();
  OwnSlots own;
  CountTile(p, m, &own);
  for (int e = threadIdx.x; e < p.experts; e += kSortBlock)
    p.counts[int64_t{blockIdx.x} * p.experts + e] = AddWarps(p, m, e);
}

// The sum of v over the threads before this one.
__device__ inline int SumBefore(SortMemory& m, int v) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto up_to = [&](int sum) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int before = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += before;
    }
    return sum;
  };
  const int sum = up_to(v);
  if (lane == 31) m.sums[warp] = sum;
  __syncthreads();
  const int of_warps = up_to(lane < warp ? m.sums[lane] : 0);
  return sum - v + __shfl_sync(~0u, of_warps, 31);
}

__global__ void __launch_bounds__(kSortBlock, 1) PlaceSlots(const __grid_constant__ SlotSort p) {
  __shared__ SortMemory m;
  WaitForWork();
  LetNextStart();
  OwnSlots own;
  CountTile(p, m, &own);
  const int thread = threadIdx.x, of_thread = (p.experts + kSortBlock - 1) / kSortBlock;
  int all[kExpertsOfThread] = {}, before[kExpertsOfThread] = {};  // slots; in the tiles before
  int wanted = 0;
#pragma unroll
  for (int j = 0; j < kExpertsOfThread; ++j) {
    const int e = thread * of_thread + j;
    if (j >= of_thread || e >= p.experts) continue;
    all[j] = AddWarps(p, m, e);
    if (p.counts) {
      all[j] = 0;
#pragma unroll 8
      for (unsigned tile = 0; tile < gridDim.x; ++tile) {
        const int count = p.counts[int64_t{tile} * p.experts + e];
        all[j] += count;
        if (tile < blockIdx.x) before[j] += count;
      }
    }
    wanted += (all[j] + p.block - 1) / p.block * p.block;
  }
  int start = SumBefore(m, wanted);
#pragma unroll
  for (int j = 0; j < kExpertsOfThread; ++j) {
    const int e = thread * of_thread + j;
    if (j >= of_thread || e >= p.experts) continue;
    m.starts[e] = start;
    m.ends[e] = start + all[j];
    m.begins[e] = start + before[j];
    start += (all[j] + p.block - 1) / p.block * p.block;
    if (e == p.experts - 1) m.starts[p.experts] = start;
  }
  __syncthreads();
  const uint16_t* counts = CountsOf(p, m, thread / 32);
#pragma unroll
  for (int i = 0; i < kSortItems; ++i) {
    const int e = own.experts[i];
    if (e < 0) continue;
    const int slot = static_cast<int>(SlotAt(i)), at = m.begins[e] + counts[e] + own.ranks[i];
    p.order[at] = slot;
    if (p.inverse) p.inverse[slot] = at;
  }
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
  const Launch launch{dim3(static_cast<unsigned>(tiles)), dim3(kSortBlock), 0, true};
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
