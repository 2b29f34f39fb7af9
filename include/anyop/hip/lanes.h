/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA's functions of the lanes of a warp, by HIP's: kernels have warps of 32 lanes. */
#ifndef ANYOP_HIP_LANES_H_
#define ANYOP_HIP_LANES_H_

// A wavefront of 64 lanes has two warps: what they exchange stays within their half, and the other
// half may be elsewhere in the program. Masks name all lanes of a warp. tests/cuda_on_cpu runs this
// text with what HIP's functions do.

constexpr int kLanesOfWarp = 32;

template <typename T>
__device__ inline T __shfl_sync(unsigned, T v, int lane) {
  return __shfl(v, lane % kLanesOfWarp, kLanesOfWarp);  // HIP 5 would leave the warp
}
template <typename T>
__device__ inline T __shfl_xor_sync(unsigned, T v, int mask) {
  return __shfl_xor(v, mask, kLanesOfWarp);
}
template <typename T>
__device__ inline T __shfl_up_sync(unsigned, T v, unsigned by) {
  return __shfl_up(v, by, kLanesOfWarp);
}
template <typename T>
__device__ inline T __shfl_down_sync(unsigned, T v, unsigned by) {
  return __shfl_down(v, by, kLanesOfWarp);
}
// Those of the warp, whichever half of the wavefront it is.
__device__ inline unsigned __ballot_sync(unsigned, int yes) {
  return static_cast<unsigned>(__ballot(yes) >> (__lane_id() / kLanesOfWarp * kLanesOfWarp));
}
__device__ inline int __any_sync(unsigned mask, int yes) { return __ballot_sync(mask, yes) != 0; }
__device__ inline int __all_sync(unsigned mask, int yes) { return __ballot_sync(mask, !yes) == 0; }
__device__ inline unsigned __reduce_add_sync(unsigned mask, unsigned v) {
  for (int step = kLanesOfWarp / 2; step; step /= 2) v += __shfl_xor_sync(mask, v, step);
  return v;
}

// What its lanes wrote is seen by the others; they go on together as it is.
__device__ inline void __syncwarp(unsigned = ~0u) {
  __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, "wavefront");
  __builtin_amdgcn_wave_barrier();
}

#endif  // ANYOP_HIP_LANES_H_
