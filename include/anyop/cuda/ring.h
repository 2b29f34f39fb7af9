/* SPDX-License-Identifier: Apache-2.0 */
/* For CUDA kernels whose blocks walk over rows: rows copied to shared memory some turns ahead. */
#ifndef ANYOP_CUDA_RING_H_
#define ANYOP_CUDA_RING_H_

#include "anyop/cuda/rows.h"

#if ANYOP_READ_ONCE
#error "code for Hopper in a file that is read once for all GPUs: say arch = \"80+\""
#endif

namespace anyop::cuda {

// ---- barriers in shared memory that count arrivals and bytes, from Hopper on ----

#if __CUDA_ARCH__ >= 900
__device__ inline void MakeBarrier(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
               "r"(arrivals)
               : "memory");
}
// To the copy engine and the cluster.
__device__ inline void ShowBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void ArriveFor(uint64_t* barrier, unsigned bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(bytes)
      : "memory");
}
__device__ inline void WaitFor(uint64_t* barrier, unsigned parity) {
  unsigned done;
  do {
    asm volatile(
        "{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
        "selp.u32 %0, 1, 0, p; }"
        : "=r"(done)
        : "r"(SharedAddress(barrier)), "r"(parity)
        : "memory");
  } while (!done);
}
#endif

// ---- rows ----

// A ring of stages, each with one row of kInputs tensors in vectors of 16 bytes, back to back.
//
// From Hopper on the copy engine fills a stage at the word of a thread for each input; before, each
// copies the vectors thread, thread + threads, ..., and may read no others.
template <int kInputs>
class RowRing {
 public:
  static constexpr int kMaxStages = 6;

  __device__ RowRing(uint4* memory, uint64_t (&barriers)[kMaxStages], int stages, int vectors)
      : memory_(memory), barriers_(barriers), stages_(stages), vectors_(vectors) {}

  // By all threads, before anything else. row_of(input, row) is where a row lies.
  template <typename RowOf>
  __device__ void Start(int64_t row, int64_t step, int64_t rows, const RowOf& row_of) {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
#pragma unroll 1
      for (int s = 0; s < stages_; ++s) MakeBarrier(barriers_ + s, kInputs);
      ShowBarriers();
    }
    __syncthreads();
#endif
#pragma unroll 1  // few instructions: a kernel that runs for some microseconds waits for them
    for (int s = 0; s < stages_; ++s, row += step) Fill(s, row, rows, row_of);
  }

  // The stage that is `ahead` behind the oldest one, when its row is there; ahead < stages.
  __device__ const uint4* Wait(int ahead) {
    const bool wraps = stage_ + ahead >= stages_;
    const int stage = stage_ + ahead - (wraps ? stages_ : 0);
#if __CUDA_ARCH__ >= 900
    WaitFor(barriers_ + stage, parity_ ^ (wraps ? 1u : 0u));
#else
    WaitForGroup(stages_ - ahead);
#endif
    return memory_ + stage * kInputs * vectors_;
  }

  // Behind a barrier that every thread reached after it read the oldest stage: fills it again.
  template <typename RowOf>
  __device__ void Refill(int64_t row, int64_t rows, const RowOf& row_of) {
    Fill(stage_, row, rows, row_of);
    if (++stage_ == stages_) {
      stage_ = 0;
      parity_ ^= 1;
    }
  }

 private:
  template <typename RowOf>
  __device__ void Fill(int stage, int64_t row, int64_t rows, const RowOf& row_of) {
    uint4* to = memory_ + stage * kInputs * vectors_;
#if __CUDA_ARCH__ >= 900
    // A thread of each warp for each input: none of them is long at it.
    if (threadIdx.x % 32 || row >= rows) return;
    const unsigned bytes = vectors_ * 16u;
    for (int i = threadIdx.x / 32; i < kInputs; i += blockDim.x / 32) {
      ArriveFor(barriers_ + stage, bytes);
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
          "[%3];" ::"r"(SharedAddress(to + i * vectors_)),
          "l"(row_of(i, row)), "r"(bytes), "r"(SharedAddress(barriers_ + stage))
          : "memory");
    }
#else
    for (int i = 0; row < rows && i < kInputs; ++i) {
      const auto* from = reinterpret_cast<const uint4*>(row_of(i, row));
      for (int at = threadIdx.x; at < vectors_; at += blockDim.x) {
#if ANYOP_PTX
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                         SharedAddress(to + i * vectors_ + at)),
                     "l"(from + at)
                     : "memory");
#else
        to[i * vectors_ + at] = from[at];
#endif
      }
    }
#if ANYOP_PTX
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
#endif
  }

  // Until at most groups - 1 are on their way.
  __device__ static void WaitForGroup([[maybe_unused]] int groups) {
#if ANYOP_PTX
    switch (groups) {
      case 1:
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        break;
      case 2:
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        break;
      case 3:
        asm volatile("cp.async.wait_group 2;" ::: "memory");
        break;
      case 4:
        asm volatile("cp.async.wait_group 3;" ::: "memory");
        break;
      case 5:
        asm volatile("cp.async.wait_group 4;" ::: "memory");
        break;
      default:
        asm volatile("cp.async.wait_group 5;" ::: "memory");
        break;
    }
#endif
  }

  uint4* memory_;
  uint64_t* barriers_;
  int stages_, vectors_, stage_ = 0;
  unsigned parity_ = 0;
};

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_RING_H_
