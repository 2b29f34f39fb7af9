/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels use of CUDA's header of bfloat16: HIP's has other names, and not in each version. */
#ifndef ANYOP_HIP_CUDA_BF16_H_
#define ANYOP_HIP_CUDA_BF16_H_

#include <hip/hip_runtime.h>
#include <stdint.h>

struct __nv_bfloat16 {
  uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 low, high;
};
__host__ __device__ inline float __bfloat162float(__nv_bfloat16 v) {
  return __builtin_bit_cast(float, static_cast<unsigned>(v.bits) << 16);
}
// To nearest, ties to even; a NaN is CUDA's.
__host__ __device__ inline __nv_bfloat16 __float2bfloat16_rn(float v) {
  const unsigned bits = __builtin_bit_cast(unsigned, v);
  return {static_cast<uint16_t>(v == v ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : 0x7fff)};
}
__host__ __device__ inline __nv_bfloat162 __floats2bfloat162_rn(float low, float high) {
  return {__float2bfloat16_rn(low), __float2bfloat16_rn(high)};
}

#endif  // ANYOP_HIP_CUDA_BF16_H_
