// SPDX-License-Identifier: Apache-2.0
// For CPU kernels: vector code chosen per processor at load, 16-bit floats, conversion between element types.
#ifndef ANYOP_CPU_H_
#define ANYOP_CPU_H_

#include "anyop/kernel.h"

// A kernel is a loop over its share of the work, in one static function:
//
//   ANYOP_CPU_CLONES void Run(const GeluArgs* args, int64_t begin, int64_t end) { ... }
//
// The macro compiles it, with all it calls inlined, once for AVX-512, AVX2 and the baseline; the loader picks
// the best the processor has. Kernels compute in float, double, int32_t or int64_t ("Wide" below) whatever the
// tensors hold: blocks of other types are converted on the way in and out, in the first-level cache.
//
// ANYOP_CPU_ISA = 1, 3 or 4 builds x86-64-v1, -v3 or -v4 only, for tests of each.
#define ANYOP_CPU_STRING_(x) #x
#define ANYOP_CPU_STRING(x) ANYOP_CPU_STRING_(x)
#if defined(ANYOP_CPU_ISA) && ANYOP_CPU_ISA == 1
#define ANYOP_CPU_CLONES __attribute__((flatten)) static
#elif defined(ANYOP_CPU_ISA)
#define ANYOP_CPU_CLONES \
  __attribute__((target("arch=x86-64-v" ANYOP_CPU_STRING(ANYOP_CPU_ISA)), flatten)) static
#elif defined(__x86_64__) && defined(__gnu_linux__) && defined(__GLIBC__) && !defined(__clang__) && \
    __GNUC__ >= 12 && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define ANYOP_CPU_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default"), flatten)) static
#elif defined(__GNUC__)
#define ANYOP_CPU_CLONES __attribute__((flatten)) static
#else
#define ANYOP_CPU_CLONES static
#endif

namespace anyop::cpu {

// Elements converted at a time: small enough for a few buffers in the first-level cache.
constexpr int64_t kBlock = 512;
// Elements worth waking a thread for.
constexpr int64_t kGrain = 32768;

struct float16 {
  uint16_t bits;
};
struct bfloat16 {
  uint16_t bits;
};

template <typename T>
constexpr AnyopDtype kDtype = kAnyopNoDtype;
template <>
constexpr AnyopDtype kDtype<bool> = kAnyopBool;
template <>
constexpr AnyopDtype kDtype<uint8_t> = kAnyopUInt8;
template <>
constexpr AnyopDtype kDtype<int8_t> = kAnyopInt8;
template <>
constexpr AnyopDtype kDtype<int16_t> = kAnyopInt16;
template <>
constexpr AnyopDtype kDtype<int32_t> = kAnyopInt32;
template <>
constexpr AnyopDtype kDtype<int64_t> = kAnyopInt64;
template <>
constexpr AnyopDtype kDtype<float16> = kAnyopFloat16;
template <>
constexpr AnyopDtype kDtype<bfloat16> = kAnyopBFloat16;
template <>
constexpr AnyopDtype kDtype<float> = kAnyopFloat32;
template <>
constexpr AnyopDtype kDtype<double> = kAnyopFloat64;

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
inline Wide Load(bfloat16 x) {
  return static_cast<Wide>(FloatOf(static_cast<uint32_t>(x.bits) << 16));
}
template <typename Wide>
inline Wide Load(float16 x) {
  const uint32_t shifted = static_cast<uint32_t>(x.bits & 0x7fff) << 13;
  const uint32_t finite = BitsOf(FloatOf(shifted) * 0x1p112f);  // moves the exponent, denormals included
  const uint32_t magnitude = shifted >= 0x0f800000u ? shifted | 0x7f800000u : finite;
  return static_cast<Wide>(FloatOf(magnitude | static_cast<uint32_t>(x.bits & 0x8000) << 16));
}

template <typename T, typename Wide>
inline void Store(Wide x, T* to) {
  *to = static_cast<T>(x);
}
template <typename Wide>
inline void Store(Wide x, bool* to) {
  *to = x != 0;
}
template <typename Wide>
inline void Store(Wide wide, bfloat16* to) {
  const float x = static_cast<float>(wide);
  const uint32_t bits = BitsOf(x);
  const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
  to->bits = static_cast<uint16_t>((x != x ? bits | 0x400000u : rounded) >> 16);
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

#if defined(__x86_64__) && defined(__GNUC__) && (!defined(ANYOP_CPU_ISA) || ANYOP_CPU_ISA >= 3)
#define ANYOP_CPU_F16C 1
// The compiler does not vectorise to these instructions; integer code for them is four times slower.
typedef float Float8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef short Short8 __attribute__((vector_size(16), aligned(2), may_alias));
inline bool HasF16C() { return __builtin_cpu_supports("avx2"); }  // every processor with AVX2 has F16C
__attribute__((target("avx,f16c"), noinline)) inline void HalfToFloat(const float16* from, int64_t n,
                                                                    float* to) {
  for (int64_t i = 0; i < n; i += 8) {
    *reinterpret_cast<Float8*>(to + i) =
        __builtin_ia32_vcvtph2ps256(*reinterpret_cast<const Short8*>(from + i));
  }
}
__attribute__((target("avx,f16c"), noinline)) inline void FloatToHalf(const float* from, int64_t n,
                                                                    float16* to) {
  for (int64_t i = 0; i < n; i += 8) {
    *reinterpret_cast<Short8*>(to + i) =
        __builtin_ia32_vcvtps2ph256(*reinterpret_cast<const Float8*>(from + i), 0);
  }
}
#endif

// n contiguous elements of one type to another; the two do not overlap.
template <typename T, typename Wide>
inline void WidenFrom(const T* from, int64_t n, Wide* to) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = Load<Wide>(from[i]);
}
template <typename T, typename Wide>
inline void NarrowTo(const Wide* from, int64_t n, T* to) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) Store(from[i], to + i);
}
#ifdef ANYOP_CPU_F16C
inline void WidenFrom(const float16* from, int64_t n, float* to) {
  const int64_t vectors = HasF16C() ? n / 8 * 8 : 0;
  HalfToFloat(from, vectors, to);
  WidenFrom<float16, float>(from + vectors, n - vectors, to + vectors);
}
inline void NarrowTo(const float* from, int64_t n, float16* to) {
  const int64_t vectors = HasF16C() ? n / 8 * 8 : 0;
  FloatToHalf(from, vectors, to);
  NarrowTo<float16, float>(from + vectors, n - vectors, to + vectors);
}
#endif

// A list of element types: those that a kernel converts from or to.
template <typename... T>
struct Types {};
using Half = Types<float16, bfloat16>;

template <typename Wide, typename... T>
inline void Widen(Types<T...>, AnyopDtype dtype, const void* from, int64_t n, Wide* to) {
  ((dtype == kDtype<T> ? WidenFrom(static_cast<const T*>(from), n, to) : void()), ...);
}
template <typename Wide, typename... T>
inline void Narrow(Types<T...>, const Wide* from, int64_t n, AnyopDtype dtype, void* to) {
  ((dtype == kDtype<T> ? NarrowTo(from, n, static_cast<T*>(to)) : void()), ...);
}

// out[i] = f(in[i]...), the loop that every element-wise part of a kernel ends in. out may be an input.
template <typename Wide, typename F, typename... In>
inline void Apply(int64_t n, F f, Wide* out, const In*... in) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) out[i] = f(in[i]...);
}

}  // namespace anyop::cpu

#endif  // ANYOP_CPU_H_
