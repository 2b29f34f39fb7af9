/* SPDX-License-Identifier: Apache-2.0 */
/* For CUDA kernels of Hopper (compute_90a): tensor maps, barriers of memory, TMA, clusters. */
#ifndef ANYOP_CUDA_HOPPER_H_
#define ANYOP_CUDA_HOPPER_H_

// Addresses of shared memory are 32 bits. A tile in shared memory is rows of 128 bytes whose
// 16-byte pieces are swizzled (Swizzled), and begins at a multiple of 1,024 bytes: 64 elements of
// 16 bits or 128 of 8 in a row.

#include <cuda.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "anyop/cuda/mma.h"
#include "anyop/cuda/wgmma.h"

#if ANYOP_READ_ONCE
#error "code for Hopper in a file that is read once for all GPUs: say arch = \"80+\""
#endif

namespace anyop::cuda {

// ---- host: tensor maps ----

// Matrices in memory as TMA reads and writes them: boxes of box_rows x 128 bytes. Steps in bytes
// are multiples of 16, and not 0.
struct MatrixOfMap {
  const void* data;                  // a multiple of 16
  int64_t rows, columns, row_bytes;  // row_bytes: a multiple of 16
  CUtensorMapDataType type;
  int element_bytes, box_rows;
  int dimensions = 2;                   // or 4: of matrices, count of them for each of groups
  int64_t count = 1, count_bytes = 16;  // as the heads of a sequence
  int64_t groups = 1, group_bytes = 16;
  int box_count = 1;  // matrices of a box, one behind the other
};
using EncodeTiledFunction = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*,
                                         const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                                         const cuuint32_t*, CUtensorMapInterleave,
                                         CUtensorMapSwizzle, CUtensorMapL2promotion,
                                         CUtensorMapFloatOOBfill);
// The driver's function by the runtime, so that nothing links against the driver; NULL where it has
// none.
inline EncodeTiledFunction FindEncodeTiled() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                             12000, cudaEnableDefault, &result);
#else
  const cudaError_t error =
      cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result);
#endif
  const bool is_there = error == cudaSuccess && result == cudaDriverEntryPointSuccess;
  return is_there ? reinterpret_cast<EncodeTiledFunction>(found) : nullptr;
}
inline bool EncodeMap(CUtensorMap* map, const MatrixOfMap& m) {
  static const EncodeTiledFunction encode = FindEncodeTiled();
  if (!encode) return false;
  const auto size = [](int64_t n) { return static_cast<cuuint64_t>(n); };
  const cuuint64_t sizes[] = {size(m.columns), size(m.rows), size(m.count), size(m.groups)};
  const cuuint64_t pitch[] = {size(m.row_bytes), size(m.count_bytes), size(m.group_bytes)};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(128 / m.element_bytes),
                            static_cast<cuuint32_t>(m.box_rows),
                            static_cast<cuuint32_t>(m.box_count), 1};
  const cuuint32_t steps[] = {1, 1, 1, 1};
  return encode(map, m.type, static_cast<cuuint32_t>(m.dimensions), const_cast<void*>(m.data),
                sizes, pitch, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

// ---- device: threads, clusters, registers ----

// Dynamic shared memory, from a multiple of 1,024 bytes on, as tiles begin.
__device__ inline uint8_t* SharedTiles() {
  extern __shared__ __align__(1024) uint8_t shared_tiles[];
  return shared_tiles;
}
__device__ inline uint32_t ClusterRank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ inline uint32_t ClusterIndex() {
  uint32_t index;
  asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(index));
  return index;
}
__device__ inline uint32_t ClusterCount() {
  uint32_t count;
  asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(count));
  return count;
}
// All threads of all blocks of the cluster meet.
__device__ inline void ClusterSync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}
// The same address in the shared memory of block rank of the cluster.
__device__ inline uint32_t PeerAddress(uint32_t address, uint32_t rank) {
  uint32_t peer;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(address), "r"(rank));
  return peer;
}
// A warpgroup, 128 threads, gives registers back, or takes those that others gave.
template <int kRegisters>
__device__ void GiveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
// So many threads of the block meet; 0 is __syncthreads.
__device__ inline void MeetAt(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// Counts as so many of them without waiting, by each of its threads.
__device__ inline void ArriveAtMeeting(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// What st.shared wrote is seen by TMA and wgmma.
__device__ inline void FenceForTma() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// ---- device: barriers in shared memory ----

__device__ inline void InitBarrier(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals));
}
// Before the block or cluster meets: others see the barriers.
__device__ inline void FenceBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void Arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Arrives, and the phase does not end before so many bytes have come.
__device__ inline void ArriveForBytes(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// Arrives once this thread's copies until now (CopyAside) have come. Who reads them by wgmma needs
// FenceForTma behind its wait.
__device__ inline void ArriveWhenCopied(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(barrier) : "memory");
}
// At block rank's barrier. Not .release.cluster, which is MEMBAR.ALL.GPU: it says no more than that
// wgmma has read a stage; what st.shared wrote for the other block it does not cover.
__device__ inline void ArriveAtPeer(uint32_t barrier, uint32_t rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(PeerAddress(barrier, rank))
               : "memory");
}
// Waits for the end of the phase of this parity. A fresh barrier counts as one of parity 1 that has
// ended: who fills a ring begins with 1.
__device__ inline void WaitAt(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (!done)
    asm volatile(
        "{.reg .pred p;\n\tmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, p;}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
}
// Whether it has ended; what came with it is seen then.
__device__ inline bool HasEnded(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{.reg .pred p;\n\tmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n\t"
      "selp.u32 %0, 1, 0, p;}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done;
}
// The same, of what threads of other blocks of the cluster wrote.
__device__ inline void WaitForCluster(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (!done)
    asm volatile(
        "{.reg .pred p;\n\tmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;"
        "\n\tselp.u32 %0, 1, 0, p;}"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
}
// Writes two floats into block rank's memory and counts their bytes at its barrier.
__device__ inline void SendTwo(uint32_t address, uint32_t barrier, float a, float b) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%2, %3}, [%1];" ::
          "r"(address),
      "r"(barrier), "f"(a), "f"(b)
      : "memory");
}
// Where a ring of stages stands.
template <int kStages>
struct RingPlace {
  uint32_t stage = 0, parity = 0;
  __device__ void Next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
  __device__ RingPlace Behind() const {
    RingPlace behind = *this;
    behind.Next();
    return behind;
  }
};

// ---- device: TMA ----

__device__ inline void PrefetchMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// For the second cache: bytes that are read once, bytes that all blocks read.
__device__ inline uint64_t ReadOnce() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
  return policy;
}
__device__ inline uint64_t ReadByAll() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(policy));
  return policy;
}
// The box at column x, row y comes to shared memory; what lies outside of the matrix is 0.
__device__ inline void LoadBox(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x,
                               int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y)
      : "memory");
}
__device__ inline void LoadBox(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y,
                               uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "l"(policy)
      : "memory");
}
// The box of matrix `which` of group `group`.
__device__ inline void LoadBox(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x, int y,
                               int which, int group) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(which), "r"(group)
      : "memory");
}
// It comes, with its bytes, to the same places in every block of mask.
__device__ inline void LoadBoxForMany(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x,
                                      int y, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "h"(mask)
      : "memory");
}
__device__ inline void LoadBoxForMany(uint32_t to, const CUtensorMap* map, uint32_t barrier, int x,
                                      int y, int which, int group, uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(to),
      "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(which), "r"(group), "h"(mask)
      : "memory");
}
// The box comes to the second cache.
__device__ inline void PrefetchBox(const CUtensorMap* map, int x, int y) {
  asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(map), "r"(x),
               "r"(y)
               : "memory");
}
// A box of shared memory goes to the matrix; what lies outside of it is not written.
__device__ inline void StoreBox(const CUtensorMap* map, uint32_t from, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%2, %3}], [%1];" ::"l"(map),
      "r"(from), "r"(x), "r"(y)
      : "memory");
}
__device__ inline void StoreBox(const CUtensorMap* map, uint32_t from, int x, int y, int which,
                                int group) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
          map),
      "r"(from), "r"(x), "r"(y), "r"(which), "r"(group)
      : "memory");
}
__device__ inline void CommitStores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until all of this thread's groups of stores but so many have read their memory.
template <int kGroups>
__device__ void WaitForStores() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kGroups) : "memory");
}

// Waits until they are written, so that what this thread releases next says so.
__device__ inline void WaitForWrites() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
// Bytes in a row, multiples of 16: to shared memory, and from there, as they are or added up as
// floats.
__device__ inline void LoadBytes(uint32_t to, const void* from, uint32_t barrier, uint32_t bytes) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ inline void StoreBytes(void* to, uint32_t from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to), "r"(from),
               "r"(bytes)
               : "memory");
}
__device__ inline void AddFloats(float* to, uint32_t from, uint32_t bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
      "r"(from), "r"(bytes)
      : "memory");
}

// ---- device: turns of blocks ----

// Waits until *turn is mine, and sees what was written before it became so, TMA's too.
__device__ inline void WaitForTurn(const int32_t* turn, int32_t mine) {
  int32_t now;
  do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(turn) : "memory");
  while (now != mine);
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
__device__ inline void PassTurn(int32_t* turn, int32_t next) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(turn), "r"(next) : "memory");
}

// ---- device: registers to shared memory ----

// Four 8 x 8 matrices of 16 bits; lane l says where row l % 8 of matrix l / 8 lies.
__device__ inline void StoreMatrices(uint32_t row, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}
// The same of their transposes.
__device__ inline void StoreTransposed(uint32_t row, uint32_t a, uint32_t b, uint32_t c,
                                       uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_HOPPER_H_
