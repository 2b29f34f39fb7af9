// SPDX-License-Identifier: Apache-2.0
// Elements of one byte, int8, float8_e4m3fn or float8_e5m2, as float32 or, as exactly, bfloat16.
#pragma once

#include "anyop/cpu.h"

namespace anyop::cpu {

struct float8_e4m3fn {  // 1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinity, 0x7f is NaN
  uint8_t bits;
};
struct float8_e5m2 {  // the upper half of a float16
  uint8_t bits;
};

inline float FloatOfByte(int8_t x) { return static_cast<float>(x); }
inline float FloatOfByte(float8_e4m3fn x) {
  const uint32_t magnitude = x.bits & 0x7fu, sign = static_cast<uint32_t>(x.bits & 0x80) << 24;
  const uint32_t finite = BitsOf(FloatOf(magnitude << 20) * 0x1p120f);  // denormals included
  return FloatOf((magnitude == 0x7f ? 0x7fc00000u : finite) | sign);
}
inline float FloatOfByte(float8_e5m2 x) {
  return Load<float>(float16{static_cast<uint16_t>(x.bits << 8)});
}

// to[i] = from[i] * scale; exact where scale is 1.
template <typename Byte, typename To>
inline void SpreadBytes(const void* from, int64_t n, float scale, To* to) {
  const Byte* bytes = static_cast<const Byte*>(from);
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) Store(FloatOfByte(bytes[i]) * scale, to + i);
}
template <typename To>
inline void WidenByteType(AnyopDtype dtype, const void* from, int64_t n, float scale, To* to) {
  if (dtype == kAnyopInt8) return SpreadBytes<int8_t>(from, n, scale, to);
  if (dtype == kAnyopFloat8E4M3FN) return SpreadBytes<float8_e4m3fn>(from, n, scale, to);
  SpreadBytes<float8_e5m2>(from, n, scale, to);
}
[[maybe_unused]] ANYOP_CPU_CLONES __attribute__((noinline)) void WidenBytes(AnyopDtype dtype,
                                                                            const void* from,
                                                                            int64_t n, float scale,
                                                                            float* to) {
  WidenByteType(dtype, from, n, scale, to);
}
[[maybe_unused]] ANYOP_CPU_CLONES __attribute__((noinline)) void WidenBytes(AnyopDtype dtype,
                                                                            const void* from,
                                                                            int64_t n, float scale,
                                                                            bfloat16* to) {
  WidenByteType(dtype, from, n, scale, to);
}

}  // namespace anyop::cpu
