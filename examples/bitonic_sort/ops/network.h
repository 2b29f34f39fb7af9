// SPDX-License-Identifier: Apache-2.0
// The bitonic network over integers in registers: of a lane, of the lanes of a warp, of several
// warps.
//
// Thread t holds places t K to t K + K - 1. Every comparison puts the smaller integer first: the
// first step of a merge meets the mirrored place, which spares the usual turned halves; then the
// halves, quarters, ... of the run meet.
#pragma once

#include "anyop/cuda.h"

namespace anyop::cuda {
namespace {

template <typename Integer>
__device__ void PutInOrder(Integer& first, Integer& second) {
  const Integer smaller = first < second ? first : second;
  second = first < second ? second : first;
  first = smaller;
}

template <typename Integer>
__device__ Integer Keep(bool smaller, Integer mine, Integer other) {
  return (mine < other) == smaller ? mine : other;
}

// Places of one lane: i meets i ^ (size - 1); then steps of at most `from`.
template <int K, typename Integer>
__device__ void MirrorInLane(Integer (&held)[K], int size) {
#pragma unroll
  for (int i = 0; i < K; ++i) {
    if (i < (i ^ (size - 1))) PutInOrder(held[i], held[i ^ (size - 1)]);
  }
}
template <int K, typename Integer>
__device__ void MergeInLane(Integer (&held)[K], int from) {
#pragma unroll
  for (int step = K / 2; step; step /= 2) {
    if (step > from) continue;
#pragma unroll
    for (int i = 0; i < K; ++i) {
      if ((i & step) == 0) PutInOrder(held[i], held[i | step]);
    }
  }
}

// Places of other lanes. width: lanes that are merged to one run.
template <int K, typename Integer>
__device__ void MirrorAcrossLanes(Integer (&held)[K], int lane, int width) {
  const bool first = (lane & width / 2) == 0;
#pragma unroll
  for (int i = 0; i < (K + 1) / 2; ++i) {
    const int j = K - 1 - i;
    const Integer for_i = __shfl_xor_sync(~0u, held[j], width - 1);
    const Integer for_j = i == j ? for_i : __shfl_xor_sync(~0u, held[i], width - 1);
    held[i] = Keep(first, held[i], for_i);
    if (i != j) held[j] = Keep(first, held[j], for_j);
  }
}
template <int K, typename Integer>
__device__ void MergeAcrossLanes(Integer (&held)[K], int lane, int step) {
  const bool first = (lane & step) == 0;
#pragma unroll
  for (int i = 0; i < K; ++i) held[i] = Keep(first, held[i], __shfl_xor_sync(~0u, held[i], step));
}

// Sorts what `lanes` lanes hold, of which this is the lane-th.
template <int K, typename Integer>
__device__ void SortLanes(Integer (&held)[K], int lane, int lanes) {
#pragma unroll
  for (int size = 2; size <= K; size *= 2) {
    MirrorInLane(held, size);
    MergeInLane(held, size / 4);
  }
  for (int width = 2; width <= lanes; width *= 2) {
    MirrorAcrossLanes(held, lane, width);
    for (int step = width / 4; step; step /= 2) MergeAcrossLanes(held, lane, step);
    MergeInLane(held, K / 2);
  }
}

// Places of other warps, through shared memory of an integer for each place of the block. mirrored:
// the other thread's places are met from their end.
template <int K, typename Integer>
__device__ void MeetThread(Integer (&held)[K], Integer* shared, int other, bool mirrored) {
  const bool first = static_cast<int>(threadIdx.x) < other;
  __syncthreads();  // the step before is read
#pragma unroll
  for (int i = 0; i < K; ++i) shared[i * blockDim.x + threadIdx.x] = held[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < K; ++i)
    held[i] = Keep(first, held[i], shared[(mirrored ? K - 1 - i : i) * blockDim.x + other]);
}

// Sorts what the block holds, warps of a power of two.
template <int K, typename Integer>
__device__ void SortWarps(Integer (&held)[K], Integer* shared) {
  const int thread = threadIdx.x, lane = thread % 32;
  SortLanes(held, lane, 32);
  for (int width = 64; width <= static_cast<int>(blockDim.x); width *= 2) {
    MeetThread(held, shared, thread ^ (width - 1), true);
    for (int step = width / 4; step >= 32; step /= 2)
      MeetThread(held, shared, thread ^ step, false);
    for (int step = 16; step; step /= 2) MergeAcrossLanes(held, lane, step);
    MergeInLane(held, K / 2);
  }
}

}  // namespace
}  // namespace anyop::cuda
