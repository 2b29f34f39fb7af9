/* SPDX-License-Identifier: Apache-2.0 */
/* For CUDA kernels (.cu): launches whose errors are the call's, element types and vectors of them.
 */
#ifndef ANYOP_CUDA_H_
#define ANYOP_CUDA_H_

#include <type_traits>

#include "anyop/cuda/float16.h"
#include "anyop/cuda/launch.h"
#include "anyop/kernel.h"

namespace anyop::cuda {

// ---- element types ----

// What sums and products of T are in.
template <typename T>
struct WideOf {
  using Type = float;
};
template <>
struct WideOf<double> {
  using Type = double;
};
template <typename T>
using Wide = typename WideOf<T>::Type;

// ---- host: types and operands ----

// Calls body with a zero of the C++ type of a floating dtype.
template <typename Body>
int32_t WithFloating(AnyopDtype dtype, const Body& body) {
  switch (dtype) {
    case kAnyopFloat32:
      return body(float());
    case kAnyopFloat16:
      return body(__half());
    case kAnyopBFloat16:
      return body(__nv_bfloat16());
    case kAnyopFloat64:
      return body(double());
    default:
      return kAnyopInternalError;  // no schema with such a kernel allows another
  }
}

// The same of those that are computed in float32.
template <typename Body>
int32_t WithFloat32Sums(AnyopDtype dtype, const Body& body) {
  switch (dtype) {
    case kAnyopFloat32:
      return body(float());
    case kAnyopFloat16:
      return body(__half());
    case kAnyopBFloat16:
      return body(__nv_bfloat16());
    default:
      return kAnyopInternalError;
  }
}

inline bool IsFloating(AnyopDtype dtype) {
  return dtype == kAnyopFloat32 || dtype == kAnyopFloat16 || dtype == kAnyopBFloat16 ||
         dtype == kAnyopFloat64;
}

// A number that is added to keep a sum from 0: it does not become 0 where it is too small for T's
// sums.
template <typename T>
Wide<T> EpsilonOf(double eps) {
  const auto rounded = static_cast<Wide<T>>(eps);
  return rounded == 0 && eps > 0 ? static_cast<Wide<T>>(0x1p-126) : rounded;
}

inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
template <typename T>
bool IsAligned(const T* pointer, uintptr_t bytes) {
  return reinterpret_cast<uintptr_t>(pointer) % bytes == 0;
}

// ---- device: elements ----

__device__ inline float Widen(float v) { return v; }
__device__ inline double Widen(double v) { return v; }

// The two elements of a word; of float16, and back: cuda/float16.h.
__device__ inline float WidenLow(__nv_bfloat16, unsigned word) {
  return __uint_as_float(word << 16);
}
__device__ inline float WidenHigh(__nv_bfloat16, unsigned word) {
  return __uint_as_float(word & 0xffff0000u);
}
// The same by other instructions, so that the compiler does not see it.
template <int kSelector>
__device__ unsigned Permute(unsigned word) {
#if ANYOP_PTX
  unsigned bits;
  asm volatile("prmt.b32 %0, %1, 0, %2;" : "=r"(bits) : "r"(word), "n"(kSelector));
  return bits;
#else
  unsigned bits = 0;
  for (int i = 0; i < 4; ++i) {
    const int byte = kSelector >> 4 * i & 15;  // 0 to 3 of the word; 4 to 7 are 0
    if (byte < 4) bits |= (word >> 8 * byte & 0xff) << 8 * i;
  }
  return bits;
#endif
}
// Bytes of the high bits of bytes: 0xff where one is set. Digit 8 + i of the selector: that of byte
// i.
template <int kSelector>
__device__ unsigned SpreadMarks(unsigned marks) {
  unsigned bits = 0;
#if ANYOP_PTX
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(bits) : "r"(marks), "n"(kSelector));
#else
  for (int i = 0; i < 4; ++i) {
    const int byte = (kSelector >> 4 * i & 15) - 8;
    if (marks >> (8 * byte + 7) & 1) bits |= 0xffu << 8 * i;
  }
#endif
  return bits;
}
__device__ inline float WidenLowAgain(__nv_bfloat16, unsigned word) {
  return __uint_as_float(Permute<0x1044>(word));
}
__device__ inline float WidenHighAgain(__nv_bfloat16, unsigned word) {
  return __uint_as_float(Permute<0x3244>(word));
}
__device__ inline float WidenLowAgain(__half zero, unsigned word) {
  return WidenHigh(zero, Permute<0x1032>(word));
}
__device__ inline float WidenHighAgain(__half zero, unsigned word) {
  return WidenLow(zero, Permute<0x1032>(word));
}

// The greater of two elements each; of a number and NaN the number.
#if ANYOP_PTX
__device__ inline unsigned MaxOfTwo(__nv_bfloat16, unsigned a, unsigned b) {
  unsigned most;
  asm("max.bf16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
  return most;
}
__device__ inline unsigned MaxOfTwo(__half, unsigned a, unsigned b) {
  unsigned most;
  asm("max.f16x2 %0, %1, %2;" : "=r"(most) : "r"(a), "r"(b));
  return most;
}
#else
template <typename T>
__device__ inline unsigned MaxOfTwo(T zero, unsigned a, unsigned b) {
  return NarrowTwo(zero, fmaxf(WidenLow(zero, a), WidenLow(zero, b)),
                   fmaxf(WidenHigh(zero, a), WidenHigh(zero, b)));
}
#endif

// The greater of two; NaN if one is.
__device__ inline float AtLeast(float v, float limit) {
#if ANYOP_PTX
  float most;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(v), "f"(limit));
  return most;
#else
  return v >= limit || v != v ? v : limit;
#endif
}
// Of a magnitude and a number; NaN is above infinity.
struct GreaterMagnitude {
  __device__ float operator()(float a, float b) const { return AtLeast(fabsf(b), a); }
};
// The greater magnitudes of two elements each; NaN is above infinity.
template <typename T>
__device__ unsigned MaxMagnitudeOfTwo(T, unsigned a, unsigned b) {
  a &= 0x7fff7fffu, b &= 0x7fff7fffu;  // magnitudes have the order of their bits
#if ANYOP_PTX
  return __vmaxu2(a, b);
#else
  const unsigned low = (a & 0xffff) > (b & 0xffff) ? a & 0xffff : b & 0xffff;
  return low | (a >> 16 > b >> 16 ? a & 0xffff0000u : b & 0xffff0000u);
#endif
}

// a * b + c, rounded once wherever it stands: the compiler's own choice differs from place to
// place.
__device__ inline float MulAdd(float a, float b, float c) { return fmaf(a, b, c); }
__device__ inline double MulAdd(double a, double b, double c) { return fma(a, b, c); }

// 2 to the power of v, to two units in the last place; 0 below 2^-126.
__device__ inline float PowerOfTwo(float v) {
#if ANYOP_PTX
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(v));
  return power;
#else
  return v < -126 ? 0 : exp2f(v);
#endif
}
__device__ inline double PowerOfTwo(double v) { return exp2(v); }
// e to the power of v, likewise.
__device__ inline float Exponential(float v) { return PowerOfTwo(v * 1.44269504088896341f); }
__device__ inline double Exponential(double v) { return exp(v); }

// 1 / sqrt(v): rsqrtf, which is off by up to two units in the last place, and a step of Newton's.
__device__ inline float ReciprocalRoot(float v) {
  const float guess = rsqrtf(v), rest = fmaf(v * guess, -guess, 1.0f);
  return rest == rest ? fmaf(0.5f * guess, rest, guess) : guess;  // 0 and infinity
}
__device__ inline double ReciprocalRoot(double v) { return 1 / sqrt(v); }

// 1 / v, off by up to a unit in the last place, and 0 where v is above 2^126.
__device__ inline float Reciprocal(float v) {
#if ANYOP_PTX
  float reciprocal;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(v));
  return reciprocal;
#else
  return 1 / v;
#endif
}
__device__ inline double Reciprocal(double v) { return 1 / v; }

template <typename T>
__device__ T Narrow(Wide<T> v) {
  return v;
}
template <>
__device__ inline __half Narrow<__half>(float v) {
  return RoundToHalf(v);
}
template <>
__device__ inline __nv_bfloat16 Narrow<__nv_bfloat16>(float v) {
  return RoundToBFloat16(v);
}

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Vector {
  T at[kCount];
};

// ---- device: 16 bytes, what one thread moves at once ----
//
// They stay packed in four registers; an array of 16-bit elements would take a register for each.

template <typename T>
constexpr int kPerVector = 16 / int{sizeof(T)};
template <typename T>
struct Unpacked {
  Wide<T> at[kPerVector<T>];
  __device__ Wide<T> operator[](int k) const { return at[k]; }
};

template <typename T>
__device__ Unpacked<T> Unpack(const uint4& bits) {
  const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
  Unpacked<T> wide;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 8) {
      if (i % 2 == 0)
        wide.at[i / 2] =
            __hiloint2double(static_cast<int>(words[i + 1]), static_cast<int>(words[i]));
    } else if constexpr (sizeof(T) == 4) {
      wide.at[i] = __uint_as_float(words[i]);
    } else {
      const Wide<T> low = WidenLow(T(), words[i]), high = WidenHigh(T(), words[i]);
      wide.at[2 * i] = low;
      wide.at[2 * i + 1] = high;
    }
  }
  return wide;
}

// Unpack for the second time, behind a barrier: the compiler would keep the elements of the first
// across it, two registers for one.
template <typename T>
__device__ Unpacked<T> UnpackAgain(const uint4& bits) {
  if constexpr (sizeof(T) != 2) {
    return Unpack<T>(bits);
  } else {
    const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
    Unpacked<T> wide;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      wide.at[2 * i] = WidenLowAgain(T(), words[i]);
      wide.at[2 * i + 1] = WidenHighAgain(T(), words[i]);
    }
    return wide;
  }
}

template <typename T>
__device__ uint4 Pack(const Unpacked<T>& wide) {
  unsigned words[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 8) {
      words[i] = static_cast<unsigned>(i % 2 ? __double2hiint(wide.at[i / 2])
                                             : __double2loint(wide.at[i / 2]));
    } else if constexpr (sizeof(T) == 4) {
      words[i] = __float_as_uint(wide.at[i]);
    } else {
      words[i] = NarrowTwo(T(), wide.at[2 * i], wide.at[2 * i + 1]);
    }
  }
  return make_uint4(words[0], words[1], words[2], words[3]);
}

// The same of places that may not be aligned to 16 bytes: then element by element.
template <typename T>
__device__ uint4 LoadAt(const T* from, bool aligned) {
  if (aligned) return *reinterpret_cast<const uint4*>(from);
  Vector<T, kPerVector<T>> elements;
#pragma unroll
  for (int k = 0; k < kPerVector<T>; ++k) elements.at[k] = from[k];
  return reinterpret_cast<const uint4&>(elements);
}
template <typename T>
__device__ void StoreAt(T* to, bool aligned, const uint4& bits) {
  if (aligned) {
    *reinterpret_cast<uint4*>(to) = bits;
    return;
  }
  const auto& elements = reinterpret_cast<const Vector<T, kPerVector<T>>&>(bits);
#pragma unroll
  for (int k = 0; k < kPerVector<T>; ++k) to[k] = elements.at[k];
}

// LoadAt of what other rows read too: it stays in the first cache while they stream through.
template <typename T>
__device__ uint4 LoadKept(const T* from, bool aligned) {
  if (!aligned || !ANYOP_PTX) return LoadAt(from, aligned);
  uint4 bits = {};
#if ANYOP_PTX
  asm("ld.global.L1::evict_last.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
      : "l"(from));
#endif
  return bits;
}

// Reads 16 bytes at this place of the program: the compiler moves other reads freely, and
// measurably for the worse.
__device__ inline uint4 LoadNow(const uint4* from) {
#if ANYOP_PTX
  uint4 bits;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(bits.x), "=r"(bits.y), "=r"(bits.z), "=r"(bits.w)
               : "l"(from)
               : "memory");
  return bits;
#else
  return *from;
#endif
}

// One element, or 16 bytes, widened.
template <typename W, int kPer>
struct Piece {
  W at[kPer];
  __device__ W operator[](int k) const { return at[k]; }
};
template <int kPer, typename T>
__device__ Piece<Wide<T>, kPer> ReadPiece(const T* from, bool aligned) {
  Piece<Wide<T>, kPer> piece;
  if constexpr (kPer == 1) {
    piece.at[0] = Widen(*from);
  } else {
    const Unpacked<T> wide = Unpack<T>(LoadAt(from, aligned));
#pragma unroll
    for (int k = 0; k < kPer; ++k) piece.at[k] = wide.at[k];
  }
  return piece;
}
template <int kPer, typename T>
__device__ void WritePiece(T* to, bool aligned, const Piece<Wide<T>, kPer>& piece) {
  if constexpr (kPer == 1) {
    *to = Narrow<T>(piece.at[0]);
  } else {
    Unpacked<T> wide;
#pragma unroll
    for (int k = 0; k < kPer; ++k) wide.at[k] = piece.at[k];
    StoreAt(to, aligned, Pack<T>(wide));
  }
}

// ---- device: shared memory ----

// What the launch asked for by Launch::shared_bytes.
__device__ inline uint4* DynamicShared() {
#ifdef ANYOP_DYNAMIC_SHARED  // where it is no array of the language
  return static_cast<uint4*>(ANYOP_DYNAMIC_SHARED);
#else
  extern __shared__ __align__(128) uint4 memory[];
  return memory;
#endif
}

#if ANYOP_PTX
// As instructions on shared memory take it.
__device__ inline unsigned SharedAddress(const void* p) {
  return static_cast<unsigned>(__cvta_generic_to_shared(p));
}
#endif

// ---- device: dependent launches ----

// For a kernel with Launch::overlaps: waits until the kernel before it is done and seen.
__device__ inline void WaitForWork() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// For the kernel before it: the next one's blocks may start where there is room.
__device__ inline void LetNextStart() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_H_
