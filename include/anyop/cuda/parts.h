/* SPDX-License-Identifier: Apache-2.0 */
/* For CUDA kernels that sum over rows: the parts that their blocks have summed, added in order. */
#ifndef ANYOP_CUDA_PARTS_H_
#define ANYOP_CUDA_PARTS_H_

#include "anyop/cuda/row_operands.h"

#if ANYOP_PTX
// Without libcu++, of which this header takes more than two CPU seconds of a file.
#ifndef _CG_LIMIT_INCLUDED_DEPENDENCIES
#define _CG_LIMIT_INCLUDED_DEPENDENCIES
#endif
#include <cooperative_groups.h>
#endif

namespace anyop::cuda {

// For a kernel with Launch::cooperative: waits until all its blocks are here, and sees what they
// have written. The counter is the driver's, one for each launch, replayed graphs among them.
__device__ inline void WaitForGrid() {
#if ANYOP_PTX
  cooperative_groups::this_grid().sync();
#elif defined(ANYOP_WAIT_FOR_GRID)  // where it is no part of the language
  ANYOP_WAIT_FOR_GRID();
#endif
}

// The results of sums over rows: tensors (D) of any floating dtype, NULL where not wanted.
template <int kSums>
struct SumsTo {
  char* data[kSums];
  AnyopDtype dtype[kSums];
};

// `count` parts of (kSums, D), and how a grid shares their columns: a block takes runs of `wide`
// threads, a power of two up to 32, side by side, of kPer columns each; its other threads share the
// parts.
template <int kSums>
struct PartsToAdd {
  SumsTo<kSums> to;
  int64_t D;
  int count, wide;

  // As few columns a block as leave no block without any, and no thread without a part.
  PartsToAdd(const SumsTo<kSums>& to, int64_t D, int64_t parts, int64_t blocks, int per,
             int threads)
      : to(to), D(D), count(static_cast<int>(parts)), wide(4) {
    while (wide < 32 && (wide * per * blocks < D * kSums || threads / wide > count)) wide *= 2;
  }
};
// What AddParts needs of shared memory.
template <typename W>
constexpr int BytesToAdd(int threads, int per) {
  return threads * per * static_cast<int>(sizeof(W));
}

// By all threads of a grid. In an order that depends on the launch alone.
template <typename W, int kPer, int kSums>
__device__ void AddParts(const W* parts, const PartsToAdd<kSums>& add, W* shared) {
  const int wide = add.wide, side = threadIdx.x & (wide - 1), chunk = wide * kPer;
  const int lane = threadIdx.x / wide, lanes = blockDim.x / wide, warps = blockDim.x / 32;
  const int64_t all = add.D * kSums;
  for (int64_t first = int64_t{blockIdx.x} * chunk; first < all;
       first += int64_t{gridDim.x} * chunk) {
    const int64_t at = first + side * kPer;
    W sum[kPer] = {};
    if (at < all) {
      const auto* from = reinterpret_cast<const Vector<W, kPer>*>(parts + at);
      constexpr int kAhead = 8;  // on their way at once
#pragma unroll 1
      for (int i = lane; i < add.count; i += kAhead * lanes) {
        Vector<W, kPer> part[kAhead] = {};
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
          if (i + j * lanes < add.count) part[j] = from[(i + j * lanes) * (all / kPer)];
        }
        // In pairs: hundreds of parts one behind the other would lose digits.
#pragma unroll
        for (int step = 1; step < kAhead; step *= 2) {
#pragma unroll
          for (int j = 0; j < kAhead; j += 2 * step) {
#pragma unroll
            for (int k = 0; k < kPer; ++k) part[j].at[k] += part[j + step].at[k];
          }
        }
#pragma unroll
        for (int k = 0; k < kPer; ++k) sum[k] += part[0].at[k];
      }
    }
    for (int step = wide; step < 32; step *= 2) {
#pragma unroll
      for (int k = 0; k < kPer; ++k) sum[k] += __shfl_xor_sync(~0u, sum[k], step);
    }
    if (threadIdx.x % 32 < wide) {
#pragma unroll
      for (int k = 0; k < kPer; ++k) shared[(threadIdx.x / 32 * wide + side) * kPer + k] = sum[k];
    }
    __syncthreads();
    for (int c = threadIdx.x; c < chunk && first + c < all; c += blockDim.x) {
      W total = 0;
      for (int w = 0; w < warps; ++w) total += shared[w * chunk + c];
      int64_t d = first + c;
      int s = 0;
      for (; d >= add.D; d -= add.D) ++s;
      if (add.to.data[s]) WriteFloating<W>(add.to.data[s], d, add.to.dtype[s], total);
    }
    __syncthreads();
  }
}

template <typename W, int kPer, int kSums>
__global__ void __launch_bounds__(256)
    AddPartsAlone(const W* parts, const __grid_constant__ PartsToAdd<kSums> add) {
  __shared__ W shared[256 * kPer];
  WaitForWork();
  AddParts<W, kPer>(parts, add, shared);
}

// parts: (count, kSums, D). Of 0 parts: zeros. overlaps: the kernel before calls LetNextStart.
template <typename W, int kSums>
int32_t RunAddParts(AnyopCall* call, const W* parts, const SumsTo<kSums>& to, int64_t count,
                    int64_t D, bool overlaps) {
  constexpr int64_t kMost = 1024, kThreads = 256;
  const int per = D % 4 ? 1 : 4;
  const PartsToAdd<kSums> add(to, D, count, kMost, per, kThreads);
  const int64_t blocks = CeilDiv(D * kSums, add.wide * per);
  const Launch launch{dim3(static_cast<unsigned>(blocks < kMost ? blocks : kMost)), dim3(kThreads),
                      0, overlaps};
  return per == 1 ? launch.Run(call, AddPartsAlone<W, 1, kSums>, parts, add)
                  : launch.Run(call, AddPartsAlone<W, 4, kSums>, parts, add);
}

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_PARTS_H_
