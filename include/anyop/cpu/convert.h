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
ANYOP_CPU_TARGET_F16C inline Float8 LoadF16C(const float* from) {
  return *reinterpret_cast<const Float8*>(from);
}
ANYOP_CPU_TARGET_F16C inline void StoreF16C(Float8 x, float* to) {
  *reinterpret_cast<Float8*>(to) = x;
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
template <typename Out, typename F, typename... In>
ANYOP_CPU_TARGET_F16C __attribute__((noinline, flatten)) int64_t ApplyF16C(int64_t n, F f, Out* out,
                                                                           const In*... in) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) StoreF16C(f(LoadF16C(in + i)...), out + i);
  return i;
}
#endif
#endif

// The same with vectors of 16 elements, for float, float16 and bfloat16.
#if defined(ANYOP_CPU_F16C) && (!defined(ANYOP_CPU_ISA) || ANYOP_CPU_ISA >= 4)
#define ANYOP_CPU_512 1
#define ANYOP_CPU_TARGET_512 __attribute__((target("avx512f,avx512dq,avx512bw,avx512vl")))
typedef float Floats512 __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t Words512 __attribute__((vector_size(64)));
typedef uint16_t Halves512 __attribute__((vector_size(32), aligned(2), may_alias));
template <typename Out>
inline bool Has512() {
  return __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") &&
         (kDtype<Out> != kAnyopBFloat16 || __builtin_cpu_supports("avx512bf16"));
}
// Assembler, because the names and the types of the intrinsics differ between compilers.
ANYOP_CPU_TARGET_512 inline Floats512 Load512(const float* from) {
  return *reinterpret_cast<const Floats512*>(from);
}
ANYOP_CPU_TARGET_512 inline Floats512 Load512(const float16* from) {
  Floats512 x;
  asm("vcvtph2ps %1, %0" : "=v"(x) : "vm"(*reinterpret_cast<const Halves512*>(from)));
  return x;
}
ANYOP_CPU_TARGET_512 inline Floats512 Load512(const bfloat16* from) {
  Words512 words;
  asm("vpmovzxwd %1, %0" : "=v"(words) : "vm"(*reinterpret_cast<const Halves512*>(from)));
  return reinterpret_cast<Floats512>(words << 16);
}
// 32 elements, because bfloat16 has to look at what is stored.
ANYOP_CPU_TARGET_512 inline void Store512(Floats512 x, Floats512 y, float* to) {
  *reinterpret_cast<Floats512*>(to) = x;
  *reinterpret_cast<Floats512*>(to + 16) = y;
}
ANYOP_CPU_TARGET_512 inline void Store512(Floats512 x, Floats512 y, float16* to) {
  Halves512* half = reinterpret_cast<Halves512*>(to);     // auto would forget the alignment
  asm("vcvtps2ph $0, %1, %0" : "=vm"(half[0]) : "v"(x));  // 0: to nearest even
  asm("vcvtps2ph $0, %1, %0" : "=vm"(half[1]) : "v"(y));
}
// Not inlined, so that x and y need not lie in memory.
ANYOP_CPU_TARGET_512 __attribute__((noinline, cold)) inline void StoreDenormals(Floats512 x,
                                                                                Floats512 y,
                                                                                bfloat16* to) {
  NarrowByInteger(reinterpret_cast<const float*>(&x), 16, to);
  NarrowByInteger(reinterpret_cast<const float*>(&y), 16, to + 16);
}
ANYOP_CPU_TARGET_512 inline void Store512(Floats512 x, Floats512 y, bfloat16* to) {
  Halves512* half = reinterpret_cast<Halves512*>(to);  // auto would forget the alignment
  bool denormal;                                       // of which vcvtneps2bf16 would make 0
  asm("vfpclassps $0x20, %1, %%k1\n\tvfpclassps $0x20, %2, %%k2\n\tkortestw %%k1, %%k2"
      : "=@ccnz"(denormal)
      : "v"(x), "v"(y)
      : "k1", "k2");
  if (__builtin_expect(denormal, 0)) return StoreDenormals(x, y, to);
  asm("vcvtneps2bf16 %1, %0" : "=v"(half[0]) : "v"(x));
  asm("vcvtneps2bf16 %1, %0" : "=v"(half[1]) : "v"(y));
}
template <typename From, typename To>
ANYOP_CPU_TARGET_512 __attribute__((noinline, flatten)) int64_t Convert512(const From* from,
                                                                           int64_t n, To* to) {
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) Store512(Load512(from + i), Load512(from + i + 16), to + i);
  return i;
}
#ifdef ANYOP_CPU_APPLY_F16C
#define ANYOP_CPU_APPLY_512 1
template <typename Out, typename F, typename... In>
ANYOP_CPU_TARGET_512
    __attribute__((noinline, flatten)) int64_t Apply512(int64_t n, F f, Out* out, const In*... in) {
  int64_t i = 0;
  for (; i + 32 <= n; i += 32) Store512(f(Load512(in + i)...), f(Load512(in + i + 16)...), out + i);
  return i;
}
template <typename F, typename... In>
ANYOP_CPU_TARGET_512 __attribute__((noinline, flatten)) float Sum512(int64_t n, F f,
                                                                     const In*... in) {
  Floats512 a = {}, b = {}, c = {}, d = {};
  int64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    a += f(Load512(in + i)...);
    b += f(Load512(in + i + 16)...);
    c += f(Load512(in + i + 32)...);
    d += f(Load512(in + i + 48)...);
  }
  for (; i + 16 <= n; i += 16) a += f(Load512(in + i)...);
  a = (a + b) + (c + d);
  float half[8], sum = 0;
#pragma omp simd
  for (int j = 0; j < 8; ++j) half[j] = a[j] + a[j + 8];
  for (int j = 0; j < 4; ++j) sum += half[j] + half[j + 4];
  for (; i < n; ++i) sum += f(Load<float>(in[i])...);
  return sum;
}
#endif
#endif

// out[i] = f(in[i]...) of float, float16 and bfloat16 in any mixture, converted in registers: f
// must take vectors too, by reference, as functions of plain operators can.
template <typename Out, typename F, typename... In>
inline void ApplyInRegisters(int64_t n, F f, Out* out, const In*... in) {
  int64_t i = 0;
#ifdef ANYOP_CPU_APPLY_512
  if (Has512<Out>()) i = Apply512(n, f, out, in...);
#endif
#ifdef ANYOP_CPU_APPLY_F16C
  constexpr bool kBFloat16 =
      kDtype<Out> == kAnyopBFloat16 || ((kDtype<In> == kAnyopBFloat16) || ...);
  if constexpr (!kBFloat16) {
    if (HasF16C()) i += ApplyF16C(n - i, f, out + i, (in + i)...);
  }
#endif
#pragma omp simd
  for (int64_t j = i; j < n; ++j) Store(f(Load<float>(in[j])...), out + j);
}
template <typename F, typename... In>
inline void Apply(int64_t n, F f, float16* out, const In*... in) {
  ApplyInRegisters(n, f, out, in...);
}
template <typename F, typename... In>
inline void Apply(int64_t n, F f, bfloat16* out, const In*... in) {
  ApplyInRegisters(n, f, out, in...);
}

// Sum of f(x[i]...) over a block of floats, 16-bit ones widened in registers, for kernels that do
// little else; f as for Apply. Where AddsHalves<T>() is false, blocks of float take less time.
template <typename T>
inline bool AddsHalves() {
#ifdef ANYOP_CPU_APPLY_512
  if (Has512<float>()) return true;
#endif
  return kDtype<T> == kAnyopBFloat16;
}
template <typename F, typename... In>
inline float SumHalves(int64_t n, F f, const In*... in) {
#ifdef ANYOP_CPU_APPLY_512
  if (Has512<float>()) return Sum512(n, f, in...);
#endif
  constexpr int kParts = 64;
  float parts[kParts] = {}, sum = 0;
  int64_t i = 0;
  for (; i + kParts <= n; i += kParts) {
#pragma omp simd
    for (int j = 0; j < kParts; ++j) parts[j] += f(Load<float>(in[i + j])...);
  }
  for (; i < n; ++i) sum += f(Load<float>(in[i])...);
  for (int j = 0; j < kParts; ++j) sum += parts[j];
  return sum;
}

inline void WidenFrom(const float16* from, int64_t n, float* to) {
  int64_t done = 0;
#ifdef ANYOP_CPU_512
  if (Has512<float>()) done = Convert512(from, n, to);
#endif
#ifdef ANYOP_CPU_F16C
  if (HasF16C()) done += WidenF16C(from + done, n - done, to + done);
#endif
  WidenFrom<float16, float>(from + done, n - done, to + done);
}
inline void NarrowTo(const float* from, int64_t n, float16* to) {
  int64_t done = 0;
#ifdef ANYOP_CPU_512
  if (Has512<float16>()) done = Convert512(from, n, to);
#endif
#ifdef ANYOP_CPU_F16C
  if (HasF16C()) done += NarrowF16C(from + done, n - done, to + done);
#endif
  NarrowTo<float16, float>(from + done, n - done, to + done);
}
inline void NarrowTo(const float* from, int64_t n, bfloat16* to) {
  int64_t done = 0;
#ifdef ANYOP_CPU_512
  if (Has512<bfloat16>()) done = Convert512(from, n, to);
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
