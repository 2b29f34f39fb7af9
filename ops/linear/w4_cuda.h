// SPDX-License-Identifier: Apache-2.0
// 4-bit weights on CUDA: words and blocks of them with their scales and zero points.
#pragma once

#include "anyop/cuda.h"
#include "w4_layout.h"

namespace anyop::cuda {
namespace {

// Zero points: 8 in a word of `zero`, or none, which are 8.
struct FourBits {
  const uint8_t* weight;
  const void* scale;
  const int32_t* zero;
  AnyopDtype scale_type;
  int64_t zero_row, zero_step, group;
  int N, K;
  bool aligned;  // blocks begin at multiples of 16 bytes
};

inline FourBits FourBitsOf(const AnyopTensor* weight, const AnyopTensor* scale,
                           const AnyopTensor* zero, int64_t group, int64_t N, int64_t K) {
  FourBits w = {};
  w.weight = static_cast<const uint8_t*>(weight->data);
  w.scale = scale->data, w.scale_type = AnyopDtypeOf(scale);
  if (zero) {
    w.zero = static_cast<const int32_t*>(zero->data);
    w.zero_row = zero->strides[0], w.zero_step = zero->strides[1];
  }
  w.group = group, w.N = static_cast<int>(N), w.K = static_cast<int>(K);
  w.aligned = K % w4::kFactors == 0 && reinterpret_cast<uintptr_t>(weight->data) % 16 == 0;
  return w;
}

__device__ inline float ScaleOf(const FourBits& w, int group, int n) {
  const int64_t at = int64_t{group} * w.N + n;
  if (w.scale_type == kAnyopFloat32) return static_cast<const float*>(w.scale)[at];
  return w.scale_type == kAnyopFloat16 ? Widen(static_cast<const __half*>(w.scale)[at])
                                       : Widen(static_cast<const __nv_bfloat16*>(w.scale)[at]);
}
__device__ inline int ZeroOf(const FourBits& w, int group, int n) {
  return w.zero ? w4::ZeroOf(w.zero + group * w.zero_row, w.zero_step, n) : w4::kMiddle;
}
__device__ inline int GroupOf(const FourBits& w, int k) {
  return w.group >= w.K ? 0 : k / static_cast<int>(w.group);
}

// Word t of the block of row n that begins with factor k: so also at the end of a row, where 0
// stands for factors that are not there.
__device__ inline uint32_t WordOf(const FourBits& w, int n, int k, int t) {
  const uint8_t* from = w.weight + int64_t{n} * (w.K / 2) + k / 2;
  if (w.aligned) return reinterpret_cast<const uint32_t*>(from)[t];
  uint32_t word = 0;
  if (k + w4::kFactors <= w.K) {
#pragma unroll
    for (int i = 0; i < 4; ++i) word |= uint32_t{from[4 * t + i]} << 8 * i;
    return word;
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {  // factors 8*i + 2*t and the next
    const int byte = 4 * i + t;
    if (k + 2 * byte >= w.K) continue;
    word |= (from[byte] & 15u) << 4 * i | (uint32_t{from[byte]} >> 4) << (4 * i + 16);
  }
  return word;
}

// The factors 8*i + 2*t (low) and the next of a block, of its word t.
__device__ inline float LowOf(uint32_t word, int i) {
  return static_cast<float>(word >> 4 * i & 15);
}
__device__ inline float HighOf(uint32_t word, int i) {
  return static_cast<float>(word >> (4 * i + 16) & 15);
}

#if ANYOP_PTX
// Both in the low ends of the fractions of two floats of 16 bits, in one instruction: the compiler
// makes it two, of a constant each.
__device__ inline uint32_t InFractions(uint32_t word, int i, uint32_t two_floats) {
  uint32_t two;
  asm("lop3.b32 %0, %1, 0x000f000f, %2, 0xea;" : "=r"(two) : "r"(word >> 4 * i), "r"(two_floats));
  return two;
}
#endif

// Both less the zero point, exactly: a 4-bit number in the low end of the fraction of 128 (1024 in
// float16) is that much more.
__device__ inline uint32_t LessZero(__nv_bfloat16 type, uint32_t word, int i, int zero) {
#if ANYOP_PTX
  const uint32_t two = InFractions(word, i, 0x43004300);
  uint32_t less;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;"
      : "=r"(less)
      : "r"(two), "r"(0x3f803f80u), "r"(0xc300c300u | zero * 0x00010001u));
  return less;
#else
  return NarrowTwo(type, LowOf(word, i) - zero, HighOf(word, i) - zero);
#endif
}
__device__ inline uint32_t LessZero(__half type, uint32_t word, int i, int zero) {
#if ANYOP_PTX
  const uint32_t two = InFractions(word, i, 0x64006400);
  uint32_t less;
  asm("fma.rn.f16x2 %0, %1, %2, %3;"
      : "=r"(less)
      : "r"(two), "r"(0x3c003c00u), "r"(0xe400e400u | zero * 0x00010001u));
  return less;
#else
  return NarrowTwo(type, LowOf(word, i) - zero, HighOf(word, i) - zero);
#endif
}

// Eight factors of row n from k on, a multiple of 8, times the scale, rounded.
template <typename T>
__device__ void UnpackEight(const FourBits& w, int n, int k, uint32_t (&to)[4]) {
  const int i = k % w4::kFactors / 8, first = k - k % w4::kFactors, group = GroupOf(w, first);
  const float scale = ScaleOf(w, group, n), zero = static_cast<float>(ZeroOf(w, group, n));
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const uint32_t word = WordOf(w, n, first, t);
    to[t] = NarrowTwo(T(), (LowOf(word, i) - zero) * scale, (HighOf(word, i) - zero) * scale);
  }
}

}  // namespace
}  // namespace anyop::cuda
