/* SPDX-License-Identifier: Apache-2.0 */
/* For CUDA kernels from Ampere on: copies to shared memory that run by themselves, and mma.sync. */
#ifndef ANYOP_CUDA_MMA_H_
#define ANYOP_CUDA_MMA_H_

#include <stdint.h>

#include "anyop/cuda.h"

namespace anyop::cuda {

// Element types of products; sums are int32 for int8, else float32.
enum class Operand { kBFloat16, kFloat16, kE4M3, kE5M2, kInt8 };
constexpr int BytesOf(Operand type) {
  return type == Operand::kBFloat16 || type == Operand::kFloat16 ? 2 : 1;
}
template <Operand kType>
struct SumOf {
  using Type = float;
};
template <>
struct SumOf<Operand::kInt8> {
  using Type = int;
};

// Addresses of shared memory are 32 bits.
__device__ inline uint32_t DynamicSharedAddress() {
#if ANYOP_PTX
  return SharedAddress(DynamicShared());
#else
  return 0;
#endif
}
#if !ANYOP_PTX
__device__ inline uint8_t* SharedAt(uint32_t address) {
  return reinterpret_cast<uint8_t*>(DynamicShared()) + address;
}
#endif
// The byte of piece (0 to 7) of 16 bytes of a row of a tile, rows of 128 bytes: eight rows of one
// piece, or eight pieces of one row, lie in all banks.
__device__ inline uint32_t Swizzled(uint32_t row, uint32_t piece) {
  return row * 128 + ((piece ^ (row & 7)) << 4);
}
// The same number. What is computed from it is not computed before: addresses of a whole tile, kept
// from one round of a loop to the next, would cost dozens of registers.
__device__ inline uint32_t ComputedHere(uint32_t v) {
#if ANYOP_PTX
  asm volatile("" : "+r"(v));
#endif
  return v;
}

// ---- copies ----

// Asks for what lies there, which may still be written: nothing waits, nothing is read early.
__device__ inline void FetchIntoSecondCache(const void* from) {
#if ANYOP_PTX
  asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
#endif
}
#if !ANYOP_PTX || __CUDA_ARCH__ >= 900
// So many bytes of it, both multiples of 16.
__device__ inline void FetchIntoSecondCache(const void* from, uint32_t bytes) {
#if ANYOP_PTX
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}
#endif
// Four bytes, and 256 to the second cache.
__device__ inline void CopyWordAside(uint32_t to, const void* from) {
#if ANYOP_PTX
  asm volatile("cp.async.ca.shared.global.L2::256B [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
#else
  *reinterpret_cast<uint32_t*>(SharedAt(to)) = *static_cast<const uint32_t*>(from);
#endif
}
// 16 bytes, or zeroes where not is_there (from is not read then).
__device__ inline void CopyAside(uint32_t to, const void* from, bool is_there) {
#if ANYOP_PTX
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(is_there ? 16 : 0)
               : "memory");
#else
  uint4 bytes = {};
  if (is_there) bytes = *static_cast<const uint4*>(from);
  *reinterpret_cast<uint4*>(SharedAt(to)) = bytes;
#endif
}
// 16 bytes that are read once: the second cache gets all 128 at once, else memory is asked twice.
__device__ inline void CopyOnce(uint32_t to, const void* from) {
#if ANYOP_PTX
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from)
               : "memory");
#else
  CopyAside(to, from, true);
#endif
}
// 16 bytes that the multiprocessor reads again.
__device__ inline void CopyKept(uint32_t to, const void* from) {
#if ANYOP_PTX
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
#else
  CopyAside(to, from, true);
#endif
}
__device__ inline void CommitCopies() {
#if ANYOP_PTX
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
// Waits for this thread's copies but those of the last so many groups.
template <int kGroups>
__device__ void WaitForCopies() {
#if ANYOP_PTX
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
#endif
}
__device__ inline void StoreShared(uint32_t to, const uint32_t (&words)[4]) {
#if ANYOP_PTX
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(words[0]), "r"(words[1]),
               "r"(words[2]), "r"(words[3])
               : "memory");
#else
  *reinterpret_cast<uint4*>(SharedAt(to)) = make_uint4(words[0], words[1], words[2], words[3]);
#endif
}
__device__ inline void StoreSharedWord(uint32_t to, uint32_t word) {
#if ANYOP_PTX
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
#else
  *reinterpret_cast<uint32_t*>(SharedAt(to)) = word;
#endif
}
__device__ inline uint32_t LoadSharedWord(uint32_t from) {
#if ANYOP_PTX
  uint32_t word;
  asm volatile("ld.shared.u32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
  return word;
#else
  return *reinterpret_cast<const uint32_t*>(SharedAt(from));
#endif
}
__device__ inline void LoadShared(uint32_t (&words)[4], uint32_t from) {
#if ANYOP_PTX
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(from)
               : "memory");
#else
  const uint4 bytes = *reinterpret_cast<const uint4*>(SharedAt(from));
  words[0] = bytes.x, words[1] = bytes.y, words[2] = bytes.z, words[3] = bytes.w;
#endif
}

// ---- fragments ----

// Four 8 x 8 matrices of 16 bits (8 x 16 of 8); lane l says where row l % 8 of matrix l / 8 lies.
__device__ inline void LoadMatrices(uint32_t (&words)[4], uint32_t row) {
#if ANYOP_PTX
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row)
               : "memory");
#else
  const int lane = threadIdx.x & 31;
  for (int i = 0; i < 4; ++i)
    words[i] = reinterpret_cast<const uint32_t*>(
        SharedAt(__shfl_sync(~0u, row, 8 * i + lane / 4)))[lane % 4];
#endif
}

// The same matrices of 16 bits, each transposed.
__device__ inline void LoadTransposed(uint32_t (&words)[4], uint32_t row) {
#if ANYOP_PTX
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(row)
               : "memory");
#else
  const int lane = threadIdx.x & 31, at = 2 * (lane % 4);
  for (int i = 0; i < 4; ++i) {
    const uint32_t low = __shfl_sync(~0u, row, 8 * i + at);
    const uint32_t high = __shfl_sync(~0u, row, 8 * i + at + 1);
    words[i] = reinterpret_cast<const uint16_t*>(SharedAt(low))[lane / 4] |
               uint32_t{reinterpret_cast<const uint16_t*>(SharedAt(high))[lane / 4]} << 16;
  }
#endif
}

#if !ANYOP_PTX
// The sum of the products of a word's elements.
template <Operand kType>
__device__ typename SumOf<kType>::Type Dot(uint32_t a, uint32_t b) {
  if constexpr (kType == Operand::kInt8) {
    int sum = 0;
    for (int i = 0; i < 32; i += 8)
      sum += static_cast<int8_t>(a >> i & 0xff) * static_cast<int8_t>(b >> i & 0xff);
    return sum;
  } else if constexpr (kType == Operand::kBFloat16) {
    const __nv_bfloat16 zero = {};
    return WidenLow(zero, a) * WidenLow(zero, b) + WidenHigh(zero, a) * WidenHigh(zero, b);
  } else {
    const __half zero = {};
    return WidenLow(zero, a) * WidenLow(zero, b) + WidenHigh(zero, a) * WidenHigh(zero, b);
  }
}
#endif

// d[16 x 8] += a[16 x k] b[8 x k]^T, k of 32 bytes; lane l holds of rows l / 4 (+ 8) columns
// l % 4 * 2 (+ 1): d[2 * (+ 8) + (+ 1)]. 8-bit floats are multiplied as float16, which holds them
// exactly.
template <Operand kType>
__device__ void MultiplyAdd(typename SumOf<kType>::Type (&d)[4], const uint32_t (&a)[4],
                            uint32_t b0, uint32_t b1) {
#if ANYOP_PTX
  if constexpr (kType == Operand::kInt8)
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else if constexpr (kType == Operand::kBFloat16)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  const int lane = threadIdx.x & 31;
  for (int q = 0; q < 4; ++q)  // four lanes hold a row's k
    for (int half = 0; half < 2; ++half) {
      const uint64_t mine = a[2 * half] | uint64_t{a[2 * half + 1]} << 32;
      const uint64_t rows = __shfl_sync(~0u, mine, lane / 4 * 4 + q);
      for (int c = 0; c < 2; ++c) {
        const uint32_t column = __shfl_sync(~0u, half ? b1 : b0, (lane % 4 * 2 + c) * 4 + q);
        d[c] += Dot<kType>(static_cast<uint32_t>(rows), column);
        d[2 + c] += Dot<kType>(static_cast<uint32_t>(rows >> 32), column);
      }
    }
#endif
}

// Two 8-bit floats as float16, exactly.
template <Operand kType>
__device__ uint32_t WidenTwo(uint32_t two) {
  if constexpr (kType == Operand::kE5M2) {
    return (two & 0xff) << 8 | (two & 0xff00) << 16;
  } else {
#if ANYOP_PTX && __CUDA_ARCH__ >= 890
    uint32_t wide;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(wide) : "h"(static_cast<uint16_t>(two)));
    return wide;
#else
    float numbers[2];
    for (int i = 0; i < 2; ++i) {  // its exponent is 120 above a float's
      const uint32_t byte = two >> 8 * i & 0xff, size = byte & 0x7f;
      const float number = __uint_as_float(size == 0x7f ? 0x7fc00000 : size << 20) * 0x1p120f;
      numbers[i] = byte & 0x80 ? -number : number;
    }
    return NarrowTwo(__half(), numbers[0], numbers[1]);
#endif
  }
}

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_MMA_H_
