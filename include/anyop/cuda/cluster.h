/* SPDX-License-Identifier: Apache-2.0 */
/* For CUDA kernels over rows (cuda/row.h): rows that the blocks of a cluster share, on Hopper. */
#ifndef ANYOP_CUDA_CLUSTER_H_
#define ANYOP_CUDA_CLUSTER_H_

#include "anyop/cuda/ring.h"
#include "anyop/cuda/rows.h"

namespace anyop::cuda {

constexpr int kMaxBlocks = 8;  // of a cluster

__device__ inline int RankInCluster() {
  int rank = 0;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
  return rank;
}
__device__ inline int BlocksOfCluster() {
  int blocks = 1;
#if __CUDA_ARCH__ >= 900
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
#endif
  return blocks;
}

template <typename W>
struct ClusterPartials {
  Partials<W> of_warps;
  W of_blocks[2][kMaxBlocks];  // reductions take turns, a block is never ahead by two
  uint64_t barriers[2];        // of what other blocks write
};

// A row is that of all blocks of a cluster: each joins its own part, then tells the others.
template <typename W>
class ClusterTeam : public RowTeam<W> {
 public:
  __device__ ClusterTeam(int lanes, ClusterPartials<W>& partials)
      : RowTeam<W>(lanes, partials.of_warps), partials_(partials) {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      for (uint64_t& barrier : partials_.barriers) MakeBarrier(&barrier, 1);
      ShowBarriers();
    }
    __syncthreads();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
  }

  __device__ bool IsFirst() const { return RowTeam<W>::IsFirst() && RankInCluster() == 0; }
  __device__ W Total(W v) {
    return Join(v, W(0), [](W a, W b) { return a + b; });
  }
  __device__ W Greatest(W v) {
    return Join(v, static_cast<W>(-INFINITY), [](W a, W b) { return fmax(a, b); });
  }
  template <typename F>
  __device__ W Join(W v, W none, const F& join) {
    v = RowTeam<W>::Join(v, none, join);
    Tell(v);
    v = none;
    for (int b = 0; b < BlocksOfCluster(); ++b) v = join(v, partials_.of_blocks[turn_ & 1][b]);
    ++turn_;
    return v;
  }
  template <typename... More>
  __device__ void Totals(W& first, More&... more) {
    first = Total(first);
    ((more = Total(more)), ...);
  }
  // By all threads, behind the last row: no block ends before the others have seen it begin.
  __device__ void Leave() {
    if (turn_ == 0) WaitForStart();
  }

 private:
  __device__ void WaitForStart() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
  }
  // Writes v to every block of the cluster, and waits for theirs.
  __device__ void Tell(W v) {
    if (turn_ == 0) WaitForStart();
    const int block = threadIdx.x, blocks = BlocksOfCluster();
    W* const place = partials_.of_blocks[turn_ & 1] + RankInCluster();
#if __CUDA_ARCH__ >= 900
    static_assert(sizeof(W) == 4, "");
    uint64_t* const barrier = partials_.barriers + (turn_ & 1);
    if (block < blocks) {
      unsigned to, signal;
      asm("mapa.shared::cluster.u32 %0, %1, %2;"
          : "=r"(to)
          : "r"(SharedAddress(place)), "r"(block));
      asm("mapa.shared::cluster.u32 %0, %1, %2;"
          : "=r"(signal)
          : "r"(SharedAddress(barrier)), "r"(block));
      asm volatile(
          "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(to),
          "r"(__float_as_uint(v)), "r"(signal)
          : "memory");
    }
    if (threadIdx.x == 0) ArriveFor(barrier, blocks * 4);
    WaitFor(barrier, turn_ >> 1 & 1);
#else
    if (block < blocks) *place = v;
    __syncthreads();
#endif
  }

  ClusterPartials<W>& partials_;
  int turn_ = 0;
};

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_CLUSTER_H_
