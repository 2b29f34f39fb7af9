// SPDX-License-Identifier: Apache-2.0
// For CPU kernels: vector code chosen per processor at load, element types, and the innermost loop.
#ifndef ANYOP_CPU_H_
#define ANYOP_CPU_H_

#include "anyop/kernel.h"

// A kernel is a loop over its share of the work, in one static function:
//
//   ANYOP_CPU_CLONES void Run(const GeluArgs* args, int64_t begin, int64_t end) { ... }
//
// The macro compiles it, with all it calls inlined, once for AVX-512, AVX2 and the baseline; the
// loader picks the best the processor has.
//
// Loops compute in float, double, int32_t or int64_t. What has another type is converted in blocks
// that stay in the first-level cache, by functions compiled once; bfloat16 also in registers, where
// there is little else to do.
//
// ANYOP_CPU_ISA = 1, 3 or 4 builds x86-64-v1, -v3 or -v4 only, for tests of each.
#define ANYOP_CPU_STRING_(x) #x
#define ANYOP_CPU_STRING(x) ANYOP_CPU_STRING_(x)
#if defined(ANYOP_CPU_ISA) && ANYOP_CPU_ISA == 1
#define ANYOP_CPU_CLONES __attribute__((flatten)) static
#elif defined(ANYOP_CPU_ISA)
#define ANYOP_CPU_CLONES \
  __attribute__((target("arch=x86-64-v" ANYOP_CPU_STRING(ANYOP_CPU_ISA)), flatten)) static
#elif defined(__x86_64__) && defined(__gnu_linux__) && defined(__GLIBC__) &&   \
    !defined(__clang__) && __GNUC__ >= 12 && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define ANYOP_CPU_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), flatten)) static
#elif defined(__GNUC__)
#define ANYOP_CPU_CLONES __attribute__((flatten)) static
#else
#define ANYOP_CPU_CLONES static
#endif

namespace anyop::cpu {

// Elements handled at a time where buffers are needed: a few such blocks fit the first-level cache.
constexpr int64_t kBlock = 1024;
// Elements worth waking a thread for.
constexpr int64_t kGrain = 32768;

struct float16 {
  uint16_t bits;
};
struct bfloat16 {
  uint16_t bits;
};
struct boolean {  // not bool, of which a byte other than 0 and 1 would be undefined
  uint8_t byte;
};

template <typename T>
inline constexpr AnyopDtype kDtype = kAnyopNoDtype;
template <>
inline constexpr AnyopDtype kDtype<boolean> = kAnyopBool;
template <>
inline constexpr AnyopDtype kDtype<uint8_t> = kAnyopUInt8;
template <>
inline constexpr AnyopDtype kDtype<int8_t> = kAnyopInt8;
template <>
inline constexpr AnyopDtype kDtype<int16_t> = kAnyopInt16;
template <>
inline constexpr AnyopDtype kDtype<int32_t> = kAnyopInt32;
template <>
inline constexpr AnyopDtype kDtype<int64_t> = kAnyopInt64;
template <>
inline constexpr AnyopDtype kDtype<float16> = kAnyopFloat16;
template <>
inline constexpr AnyopDtype kDtype<bfloat16> = kAnyopBFloat16;
template <>
inline constexpr AnyopDtype kDtype<float> = kAnyopFloat32;
template <>
inline constexpr AnyopDtype kDtype<double> = kAnyopFloat64;

inline bool IsFloating(AnyopDtype dtype) {
  return dtype >= kAnyopFloat16 && dtype <= kAnyopFloat64;
}

inline uint32_t BitsOf(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  return bits;
}
inline float FloatOf(uint32_t bits) {
  float x;
  __builtin_memcpy(&x, &bits, sizeof(x));
  return x;
}

// One element to and from the type computed in. 16-bit floats round to nearest even; NaN stays NaN.
template <typename Wide, typename T>
inline Wide Load(T x) {
  return static_cast<Wide>(x);
}
template <typename Wide>
inline Wide Load(boolean x) {
  return static_cast<Wide>(x.byte != 0);
}
template <typename Wide>
inline Wide Load(bfloat16 x) {
  return static_cast<Wide>(FloatOf(static_cast<uint32_t>(x.bits) << 16));
}
template <typename Wide>
inline Wide Load(float16 x) {
  const uint32_t shifted = static_cast<uint32_t>(x.bits & 0x7fff) << 13;
  const uint32_t finite =
      BitsOf(FloatOf(shifted) * 0x1p112f);  // moves the exponent, denormals included
  const uint32_t magnitude = shifted >= 0x0f800000u ? shifted | 0x7f800000u : finite;
  return static_cast<Wide>(FloatOf(magnitude | static_cast<uint32_t>(x.bits & 0x8000) << 16));
}

template <typename T, typename Wide>
inline void Store(Wide x, T* to) {
  // By way of int32_t, from which a float out of range is cut off rather than undefined.
  if constexpr (sizeof(T) < 4 && sizeof(Wide) >= 4) {
    *to = static_cast<T>(static_cast<int32_t>(x));
  } else {
    *to = static_cast<T>(x);
  }
}
template <typename Wide>
inline void Store(Wide x, boolean* to) {
  to->byte = x != 0;
}
template <typename Wide>
inline void Store(Wide wide, bfloat16* to) {
  const float x = static_cast<float>(wide);
  const uint32_t bits = BitsOf(x);
  // A result of arithmetic is never a signalling NaN, so that cutting it off leaves a NaN.
  to->bits = static_cast<uint16_t>((bits + (x == x ? 0x7fff + (bits >> 16 & 1) : 0)) >> 16);
}
template <typename Wide>
inline void Store(Wide wide, float16* to) {
  const float x = static_cast<float>(wide);
  const uint32_t bits = BitsOf(x), a = bits & 0x7fffffffu;
  const uint32_t denormal = BitsOf(FloatOf(a) + 0.5f) - 0x3f000000u;  // the addition rounds
  const uint32_t normal = (a - 0x38000000u + 0xfff + (a >> 13 & 1)) >> 13;
  uint32_t half = a < 0x38800000u ? denormal : normal;
  half = a >= 0x47800000u ? 0x7c00u : half;
  half = x != x ? 0x7e00u | (a >> 13 & 0x3ffu) : half;
  to->bits = static_cast<uint16_t>(half | (bits >> 16 & 0x8000u));
}

// A list of element types.
template <typename... T>
struct Types {
  static constexpr int kCount = sizeof...(T);
};

// The type that elements of type E are computed in.
template <typename E>
struct WideOf {
  using Type = E;
};
template <>
struct WideOf<bfloat16> {
  using Type = float;
};
template <>
struct WideOf<float16> {
  using Type = float;
};

// out[i] = f(in[i]...), the loop that element-wise work ends in. out may be one of the inputs.
template <typename E, typename F, typename... In>
inline void Apply(int64_t n, F f, E* out, const In*... in) {
  using Wide = typename WideOf<E>::Type;
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) Store(f(Load<Wide>(in[i])...), out + i);
}

// Calls run(Wide()) with what tensors of a floating-point type are computed in.
template <typename Run>
inline void WithFloat(AnyopDtype dtype, Run run) {
  if (dtype == kAnyopFloat64) return run(double());
  run(float());
}

}  // namespace anyop::cpu

#endif  // ANYOP_CPU_H_
