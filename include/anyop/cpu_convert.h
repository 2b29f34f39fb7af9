// SPDX-License-Identifier: Apache-2.0
// Converts blocks of elements between types, with the instructions that processors have for 16
// bits.
#ifndef ANYOP_CPU_CONVERT_H_
#define ANYOP_CPU_CONVERT_H_

#include "anyop/cpu.h"

// How vectors are passed is no matter between functions that are inlined.
#if defined(__GNUC__)
#pragma GCC diagnostic ignored "-Wpsabi"
#endif

namespace anyop::cpu {

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

// bfloat16 by integer instructions, called rather than inlined.
[[maybe_unused]] ANYOP_CPU_CLONES __attribute__((noinline)) void WidenFrom(const bfloat16* from,
                                                                           int64_t n, float* to) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) to[i] = Load<float>(from[i]);
}
[[maybe_unused]] ANYOP_CPU_CLONES __attribute__((noinline)) void NarrowByInteger(const float* from,
                                                                                 int64_t n,
                                                                                 bfloat16* to) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) {
    // What comes from memory may be a signalling NaN.
    const uint32_t quiet = from[i] == from[i] ? 0 : 0x400000;
    Store(FloatOf(BitsOf(from[i]) | quiet), to + i);
  }
}

// The compiler does not vectorise to the instructions below; integer code takes two to four times
// as long. The functions do as many elements as make whole vectors, and return how many.
#if defined(__x86_64__) && defined(__GNUC__) && (!defined(ANYOP_CPU_ISA) || ANYOP_CPU_ISA >= 3)
#define ANYOP_CPU_F16C 1
#define ANYOP_CPU_TARGET_F16C __attribute__((target("avx2,fma,f16c")))
typedef float Float8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef short Short8 __attribute__((vector_size(16), aligned(2), may_alias));
inline bool HasF16C() {
#if !defined(__clang__)  // which knows no such name before 19; every processor with AVX2 has F16C
  if (!__builtin_cpu_supports("f16c")) return false;
#endif
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#if defined(__clang__)
#if !__has_builtin(__builtin_ia32_vcvtph2ps256)  // newer versions convert vectors instead
#define ANYOP_CPU_CONVERTS_VECTORS_ 1
#endif
#endif
ANYOP_CPU_TARGET_F16C inline Float8 LoadF16C(const float16* from) {
#ifdef ANYOP_CPU_CONVERTS_VECTORS_
  typedef _Float16 Half8 __attribute__((vector_size(16), aligned(2), may_alias));
  return __builtin_convertvector(*reinterpret_cast<const Half8*>(from), Float8);
#else
  return __builtin_ia32_vcvtph2ps256(*reinterpret_cast<const Short8*>(from));
#endif
}
ANYOP_CPU_TARGET_F16C inline void StoreF16C(Float8 x, float16* to) {
  *reinterpret_cast<Short8*>(to) = __builtin_ia32_vcvtps2ph256(x, 0);  // 0: to nearest even
}
ANYOP_CPU_TARGET_F16C __attribute__((noinline)) inline int64_t WidenF16C(const float16* from,
                                                                         int64_t n, float* to) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) *reinterpret_cast<Float8*>(to + i) = LoadF16C(from + i);
  return i;
}
ANYOP_CPU_TARGET_F16C __attribute__((noinline)) inline int64_t NarrowF16C(const float* from,
                                                                          int64_t n, float16* to) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) StoreF16C(*reinterpret_cast<const Float8*>(from + i), to + i);
  return i;
}
#if !defined( \
    __clang__)  // which lets no vector pass through f, a function without these instructions
#define ANYOP_CPU_APPLY_F16C 1
template <typename F, typename... In>
ANYOP_CPU_TARGET_F16C
    __attribute__((noinline, flatten)) int64_t ApplyF16C(int64_t n, F f, float16* out,
                                                         const In*... in) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) StoreF16C(f(LoadF16C(in + i)...), out + i);
  return i;
}
#endif
#endif

#if defined(ANYOP_CPU_F16C) && (!defined(ANYOP_CPU_ISA) || ANYOP_CPU_ISA >= 4)
#define ANYOP_CPU_BF16 1
typedef float Float16 __attribute__((vector_size(64), aligned(4), may_alias));
typedef short Short16 __attribute__((vector_size(32), aligned(2), may_alias));
inline bool HasBF16() { return __builtin_cpu_supports("avx512bf16"); }
// Stops at a denormal number, which the instruction would make 0. Assembler, because the name and
// the types of the intrinsic differ between releases of compilers.
__attribute__((target("avx512bf16,avx512dq,avx512bw,avx512vl"), noinline)) inline int64_t
NarrowBF16(const float* from, int64_t n, bfloat16* to) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    Short16 half;
    bool denormal;
    asm("vfpclassps $0x20, %2, %%k1\n\tkortestw %%k1, %%k1\n\tvcvtneps2bf16 %2, %0"
        : "=v"(half), "=@ccnz"(denormal)
        : "v"(*reinterpret_cast<const Float16*>(from + i))
        : "k1");
    if (denormal) break;
    *reinterpret_cast<Short16*>(to + i) = half;
  }
  return i;
}
#endif

// For float16 f must take vectors too, by reference, as functions of plain operators can.
template <typename F, typename... In>
inline void Apply(int64_t n, F f, float16* out, const In*... in) {
  int64_t i = 0;
#ifdef ANYOP_CPU_APPLY_F16C
  if (HasF16C()) i = ApplyF16C(n, f, out, in...);
#endif
  for (; i < n; ++i) Store(f(Load<float>(in[i])...), out + i);
}
inline void WidenFrom(const float16* from, int64_t n, float* to) {
  int64_t done = 0;
#ifdef ANYOP_CPU_F16C
  if (HasF16C()) done = WidenF16C(from, n, to);
#endif
  WidenFrom<float16, float>(from + done, n - done, to + done);
}
inline void NarrowTo(const float* from, int64_t n, float16* to) {
  int64_t done = 0;
#ifdef ANYOP_CPU_F16C
  if (HasF16C()) done = NarrowF16C(from, n, to);
#endif
  NarrowTo<float16, float>(from + done, n - done, to + done);
}
inline void NarrowTo(const float* from, int64_t n, bfloat16* to) {
  int64_t done = 0;
#ifdef ANYOP_CPU_BF16
  if (HasBF16()) done = NarrowBF16(from, n, to);
#endif
  NarrowByInteger(from + done, n - done, to + done);
}

// The same for types known at run time, which must be among those listed. Compiled for the baseline
// only.
template <typename Wide, typename... T>
__attribute__((noinline)) void Widen(Types<T...>, [[maybe_unused]] AnyopDtype dtype,
                                     [[maybe_unused]] const void* from, [[maybe_unused]] int64_t n,
                                     [[maybe_unused]] Wide* to) {
  ((dtype == kDtype<T> ? WidenFrom(static_cast<const T*>(from), n, to) : void()), ...);
}
template <typename Wide, typename... T>
__attribute__((noinline)) void Narrow(Types<T...>, [[maybe_unused]] const Wide* from,
                                      [[maybe_unused]] int64_t n, [[maybe_unused]] AnyopDtype dtype,
                                      [[maybe_unused]] void* to) {
  ((dtype == kDtype<T> ? NarrowTo(from, n, static_cast<T*>(to)) : void()), ...);
}

}  // namespace anyop::cpu

#endif  // ANYOP_CPU_CONVERT_H_
