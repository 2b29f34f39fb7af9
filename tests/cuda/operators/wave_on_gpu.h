/* SPDX-License-Identifier: Apache-2.0 */
/* HIP's functions of a wavefront of 64 lanes on a GPU with 32, and CUDA's by anyop/hip/lanes.h. */
// Lanes are numbered in the wavefront and exchange through shared memory. What a lane of the other
// half has cannot be known, for that half may be elsewhere: it reads as NaN, and its votes as set.
// Included before all else but cuda_fp16.h and cuda_bf16.h, which keep CUDA's functions.
#pragma once

#include <type_traits>

namespace wave_on_gpu {
constexpr int kWave = 64, kHalf = 32, kMostThreads = 1024;
__device__ inline void Meet() { __syncwarp(); }  // the lanes of this half
__device__ inline int Thread() {
  return static_cast<int>(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
}
__device__ inline int Lane() { return Thread() % kWave; }
// A word for each thread of the block: kernels need most of the shared memory themselves.
__device__ inline volatile unsigned* Words() {
  __shared__ unsigned words[kMostThreads];
  return words;
}
// The value of a lane of the wavefront; bits that are set of one that is not in this half.
template <typename T>
__device__ T Exchange(T value, int from) {
  static_assert(std::is_arithmetic<T>::value && sizeof(T) >= 4, "HIP has no such function");
  constexpr int kCount = sizeof(T) / 4;
  union {
    T value;
    unsigned words[kCount];
  } given;
  given.value = value;
  const bool is_here = from >= 0 && from < kWave && from / kHalf == Lane() / kHalf;
  for (int i = 0; i < kCount; ++i) {
    Words()[Thread()] = given.words[i];
    Meet();
    given.words[i] = is_here ? Words()[Thread() - Lane() + from] : ~0u;
    Meet();
  }
  return given.value;
}
__device__ inline unsigned LaneId() { return static_cast<unsigned>(Lane()); }
template <typename T>
__device__ T Shuffle(T v, int lane, int width = kWave) {
  return Exchange(v, lane + (Lane() & ~(width - 1)));
}
template <typename T>
__device__ T ShuffleXor(T v, int mask, int width = kWave) {
  const int self = Lane(), from = self ^ mask;
  return Exchange(v, from >= ((self + width) & ~(width - 1)) ? self : from);
}
template <typename T>
__device__ T ShuffleUp(T v, unsigned by, int width = kWave) {
  const int self = Lane(), from = self - static_cast<int>(by);
  return Exchange(v, from < (self & ~(width - 1)) ? self : from);
}
template <typename T>
__device__ T ShuffleDown(T v, unsigned by, int width = kWave) {
  const int self = Lane(), from = self + static_cast<int>(by);
  return Exchange(v, static_cast<int>((self & (width - 1)) + by) >= width ? self : from);
}
__device__ inline unsigned long long Ballot(int yes) {
  unsigned long long votes = ~0ull;
  const int half = Lane() / kHalf * kHalf, first = Thread() - Lane();
  Words()[Thread()] = yes != 0;
  Meet();
  for (int i = half; i < half + kHalf; ++i) {
    if (!Words()[first + i]) votes &= ~(1ull << i);
  }
  Meet();
  return votes;
}
}  // namespace wave_on_gpu

#define __lane_id wave_on_gpu::LaneId
#define __shfl wave_on_gpu::Shuffle
#define __shfl_xor wave_on_gpu::ShuffleXor
#define __shfl_up wave_on_gpu::ShuffleUp
#define __shfl_down wave_on_gpu::ShuffleDown
#define __ballot wave_on_gpu::Ballot
#define __builtin_amdgcn_fence(order, scope)
#define __builtin_amdgcn_wave_barrier wave_on_gpu::Meet
// Those of anyop/hip/lanes.h get names of their own.
#define __shfl_sync wave_shfl_sync
#define __shfl_xor_sync wave_shfl_xor_sync
#define __shfl_up_sync wave_shfl_up_sync
#define __shfl_down_sync wave_shfl_down_sync
#define __ballot_sync wave_ballot_sync
#define __any_sync wave_any_sync
#define __all_sync wave_all_sync
#define __reduce_add_sync wave_reduce_add_sync
#define __syncwarp wave_syncwarp
#include "anyop/hip/lanes.h"
