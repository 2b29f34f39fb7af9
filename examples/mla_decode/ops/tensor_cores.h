// SPDX-License-Identifier: Apache-2.0
// Instructions of sm_80 and later for tensor cores and 16-bit floats: global to shared memory,
// tiles of that to registers, and products of tiles.
//
// Lane l of a warp has, of a tile of 8 x 8, row l / 4 and columns 2 (l % 4) and the next, in one
// word.
#pragma once

#include "anyop/cuda.h"

namespace anyop::cuda {

// Starts to copy 16 bytes, both places aligned. Where there is nothing to read they become 0; from
// is some place of global memory then.
__device__ inline void StartCopy(void* to, const void* from, bool is_there) {
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(at), "l"(__cvta_generic_to_global(from)), "r"(is_there ? 16 : 0)
               : "memory");
}
// The copies since the last one are a group.
__device__ inline void CloseGroup() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits for this thread's groups but the last kLeft.
template <int kLeft>
__device__ void WaitForGroups() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kLeft) : "memory");
}
// Waits for this thread's copies.
__device__ inline void WaitForCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Four tiles; rows of tile i are where lanes 8 i to 8 i + 7 point to, 16 bytes each, so aligned.
__device__ inline void LoadTiles(unsigned (&tile)[4], const void* row) {
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(tile[0]), "=r"(tile[1]), "=r"(tile[2]), "=r"(tile[3])
               : "r"(at)
               : "memory");
}
// The same, each tile turned: lane l gets column l / 4.
__device__ inline void LoadTurnedTiles(unsigned (&tile)[4], const void* row) {
  const auto at = static_cast<unsigned>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(tile[0]), "=r"(tile[1]), "=r"(tile[2]), "=r"(tile[3])
               : "r"(at)
               : "memory");
}

// sum (16 x 8) += a (16 x 16) * b (16 x 8). a: tiles of rows 0-7 and 8-15 of columns 0-7, then of
// columns 8-15. b: k 0-7 and 8-15, each turned, so that a lane has column l / 4. sum: rows l / 4
// (two columns) and l / 4 + 8.
__device__ inline void MultiplyTiles(__half, float (&sum)[4], const unsigned (&a)[4], unsigned b0,
                                     unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ inline void MultiplyTiles(__nv_bfloat16, float (&sum)[4], const unsigned (&a)[4],
                                     unsigned b0, unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace anyop::cuda
