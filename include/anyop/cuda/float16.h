/* SPDX-License-Identifier: Apache-2.0 */
/* For CUDA kernels (.cu): the floats of 16 bits, and the conversions that kernels need of them. */
#ifndef ANYOP_CUDA_FLOAT16_H_
#define ANYOP_CUDA_FLOAT16_H_

#include <stdint.h>

// Whether the compiler is one for NVIDIA's GPUs, which takes their instructions in asm. Each asm
// has plain C++ beside it, for other vendors' compilers and for tests without a GPU; 0 is given to
// see that C++ on a GPU (tests/cuda/operators/cuda_portable.py).
#ifndef ANYOP_PTX
#if defined(__NVCC__) || (defined(__clang__) && defined(__CUDA__))
#define ANYOP_PTX 1
#else
#define ANYOP_PTX 0
#endif
#endif

// CUDA's headers of these types take 0.8 of the 2.1 CPU seconds that a small kernel is compiled in,
// and kernels need six instructions of them. anyop's own files do without (CMakeLists.txt), and so
// does any other that defines ANYOP_OWN_FLOAT16 as 1: a kernel that calls WithFloating may want
// operators.
#if ANYOP_PTX && ANYOP_OWN_FLOAT16 && !defined(__CUDA_FP16_H__) && !defined(__CUDA_BF16_H__)

namespace anyop::cuda {

// The names are CUDA's, so that a kernel is the same text with its headers.
struct __half {
  uint16_t bits;
};
struct __nv_bfloat16 {
  uint16_t bits;
};

__device__ inline float Widen(__half v) {
  float wide;
  asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(v.bits));
  return wide;
}
__device__ inline float Widen(__nv_bfloat16 v) {
  float wide;
#if __CUDA_ARCH__ >= 900
  asm("cvt.f32.bf16 %0, %1;" : "=f"(wide) : "h"(v.bits));
#else
  asm("mov.b32 %0, {0, %1};" : "=f"(wide) : "h"(v.bits));
#endif
  return wide;
}
// Of the two elements of a word.
__device__ inline float WidenLow(__half, unsigned word) {
  float wide;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, low;\n}"
      : "=f"(wide)
      : "r"(word));
  return wide;
}
__device__ inline float WidenHigh(__half, unsigned word) {
  float wide;
  asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %1;\ncvt.f32.f16 %0, high;\n}"
      : "=f"(wide)
      : "r"(word));
  return wide;
}

// To nearest, ties to even.
__device__ inline __half RoundToHalf(float v) {
  __half narrow;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(v));
  return narrow;
}
__device__ inline __nv_bfloat16 RoundToBFloat16(float v) {
  __nv_bfloat16 narrow;
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow.bits) : "f"(v));
#else
  const unsigned bits = __float_as_uint(v);
  narrow.bits = v == v ? static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16) : 0x7fff;
#endif
  return narrow;
}
// Two, as a word.
__device__ inline unsigned NarrowTwo(__half, float low, float high) {
#if __CUDA_ARCH__ >= 800
  unsigned two;
  asm("cvt.rn.f16x2.f32 %0, %2, %1;" : "=r"(two) : "f"(low), "f"(high));
  return two;
#else
  return RoundToHalf(low).bits | static_cast<unsigned>(RoundToHalf(high).bits) << 16;
#endif
}
__device__ inline unsigned NarrowTwo(__nv_bfloat16, float low, float high) {
#if __CUDA_ARCH__ >= 800
  unsigned two;
  asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(two) : "f"(low), "f"(high));
  return two;
#else
  return RoundToBFloat16(low).bits | static_cast<unsigned>(RoundToBFloat16(high).bits) << 16;
#endif
}

}  // namespace anyop::cuda

#else

#include <cuda_bf16.h>
#include <cuda_fp16.h>

namespace anyop::cuda {

using ::__half;
using ::__nv_bfloat16;

__device__ inline float Widen(__half v) { return __half2float(v); }
__device__ inline float Widen(__nv_bfloat16 v) { return __bfloat162float(v); }
__device__ inline float WidenLow(__half, unsigned word) {
  return __low2float(reinterpret_cast<const __half2&>(word));
}
__device__ inline float WidenHigh(__half, unsigned word) {
  return __high2float(reinterpret_cast<const __half2&>(word));
}
__device__ inline __half RoundToHalf(float v) { return __float2half_rn(v); }
__device__ inline __nv_bfloat16 RoundToBFloat16(float v) { return __float2bfloat16_rn(v); }
__device__ inline unsigned NarrowTwo(__half, float low, float high) {
  const __half2 two = __floats2half2_rn(low, high);
  return reinterpret_cast<const unsigned&>(two);
}
__device__ inline unsigned NarrowTwo(__nv_bfloat16, float low, float high) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(low, high);
  return reinterpret_cast<const unsigned&>(two);
}

}  // namespace anyop::cuda

#endif

#endif  // ANYOP_CUDA_FLOAT16_H_
