/* SPDX-License-Identifier: Apache-2.0 */
/* Hopper's products of a warpgroup: D[64 x N] (+)= A[64 x k] B[N x k]^T of tiles in shared memory.
 */
#ifndef ANYOP_CUDA_WGMMA_H_
#define ANYOP_CUDA_WGMMA_H_

#include <stdint.h>

#include "anyop/cuda/mma.h"

namespace anyop::cuda {

// What wgmma is told of a tile whose rows are 128 bytes of k: bits 0 to 13 its address / 16, 32 to
// 45 the bytes from 8 rows to the next / 16, 62 the swizzle. Its next 32 bytes of k: + 2.
__device__ inline uint64_t TileOf(uint32_t address) {
  return (address & 0x3ffff) >> 4 | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}
// The same of a tile whose rows are k: B transposed, as AddRegisters takes it. Bits 16 to 29 are
// the bytes from one panel of 64 columns to the next / 16; its next 16 rows of k: + 128.
__device__ inline uint64_t PanelsOf(uint32_t address, uint32_t panel_bytes) {
  return (address & 0x3ffff) >> 4 | uint64_t{panel_bytes >> 4} << 16 | uint64_t{1024 >> 4} << 32 |
         uint64_t{1} << 62;
}
// A tile further on by so many times 16 bytes of shared memory.
__device__ inline uint64_t MovedBy(uint64_t tile, uint32_t sixteens) {
  return tile >> 32 << 32 | (static_cast<uint32_t>(tile) + sixteens);
}
__device__ inline void FenceProducts() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kGroups>
__device__ void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}
// Ties sums to this place; the compiler may move reads of them over WaitForProducts otherwise.
template <int kCount>
__device__ void Pin(float (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}
template <int kCount>
__device__ void Pin(int (&sums)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(sums[i])::"memory");
}

// Product<N>::Add<type>(d, a, b, add): sums in the order of the instruction, thread t of the
// warpgroup holds of rows t / 32 * 16 + t % 32 / 4 (+ 8) columns 8 j + t % 4 * 2 (+ 1):
// d[4 j + 2 * (+ 8) + (+ 1)]. add: 0 for the first. Of 16 bits A may be as PanelsOf gives it (of_a
// 1). AddRegisters<type, transposed>(d, a, b, add): A
// as pairs of 16 bits, in the order in which the thread holds 16 columns of sums; b as TileOf gives
// it, or transposed, as PanelsOf. AddTransposed<type, of_a>(d, a, b, add): B is as PanelsOf gives
// it, and A, unless of_a is 0.
template <int kColumns>
struct Product;

#define ANYOP_OUT_4(c, i) "+" c(d[i]), "+" c(d[i + 1]), "+" c(d[i + 2]), "+" c(d[i + 3])
#define ANYOP_OUT_8(c, i) ANYOP_OUT_4(c, i), ANYOP_OUT_4(c, i + 4)
#define ANYOP_OUT_16(c, i) ANYOP_OUT_8(c, i), ANYOP_OUT_8(c, i + 8)
#define ANYOP_OUT_32(c, i) ANYOP_OUT_16(c, i), ANYOP_OUT_16(c, i + 16)
#define ANYOP_OUT_64(c, i) ANYOP_OUT_32(c, i), ANYOP_OUT_32(c, i + 32)
#define ANYOP_OUT_128(c, i) ANYOP_OUT_64(c, i), ANYOP_OUT_64(c, i + 64)
#define ANYOP_OUT_12(c, i) ANYOP_OUT_8(c, i), ANYOP_OUT_4(c, i + 8)
#define ANYOP_OUT_20(c, i) ANYOP_OUT_16(c, i), ANYOP_OUT_4(c, i + 16)
#define ANYOP_OUT_24(c, i) ANYOP_OUT_16(c, i), ANYOP_OUT_8(c, i + 16)
#define ANYOP_OUT_28(c, i) ANYOP_OUT_16(c, i), ANYOP_OUT_8(c, i + 16), ANYOP_OUT_4(c, i + 24)
#define ANYOP_OUT_36(c, i) ANYOP_OUT_32(c, i), ANYOP_OUT_4(c, i + 32)
#define ANYOP_OUT_40(c, i) ANYOP_OUT_32(c, i), ANYOP_OUT_8(c, i + 32)
#define ANYOP_OUT_44(c, i) ANYOP_OUT_32(c, i), ANYOP_OUT_8(c, i + 32), ANYOP_OUT_4(c, i + 40)
#define ANYOP_OUT_48(c, i) ANYOP_OUT_32(c, i), ANYOP_OUT_16(c, i + 32)
#define ANYOP_OUT_52(c, i) ANYOP_OUT_32(c, i), ANYOP_OUT_16(c, i + 32), ANYOP_OUT_4(c, i + 48)
#define ANYOP_OUT_56(c, i) ANYOP_OUT_32(c, i), ANYOP_OUT_16(c, i + 32), ANYOP_OUT_8(c, i + 48)
#define ANYOP_OUT_60(c, i) \
  ANYOP_OUT_32(c, i), ANYOP_OUT_16(c, i + 32), ANYOP_OUT_8(c, i + 48), ANYOP_OUT_4(c, i + 56)
#define ANYOP_OUT_68(c, i) ANYOP_OUT_64(c, i), ANYOP_OUT_4(c, i + 64)
#define ANYOP_OUT_72(c, i) ANYOP_OUT_64(c, i), ANYOP_OUT_8(c, i + 64)
#define ANYOP_OUT_76(c, i) ANYOP_OUT_64(c, i), ANYOP_OUT_8(c, i + 64), ANYOP_OUT_4(c, i + 72)
#define ANYOP_OUT_80(c, i) ANYOP_OUT_64(c, i), ANYOP_OUT_16(c, i + 64)
#define ANYOP_LIST_4 "%0,%1,%2,%3"
#define ANYOP_LIST_8 ANYOP_LIST_4 ",%4,%5,%6,%7"
#define ANYOP_LIST_16 ANYOP_LIST_8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define ANYOP_LIST_32 \
  ANYOP_LIST_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define ANYOP_LIST_64                                                                    \
  ANYOP_LIST_32                                                                          \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52" \
  ",%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define ANYOP_LIST_128                                                                   \
  ANYOP_LIST_64                                                                          \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84" \
  ",%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103"     \
  ",%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119"     \
  ",%120,%121,%122,%123,%124,%125,%126,%127"
#define ANYOP_LIST_12 ANYOP_LIST_8 ",%8,%9,%10,%11"
#define ANYOP_LIST_20 ANYOP_LIST_16 ",%16,%17,%18,%19"
#define ANYOP_LIST_24 ANYOP_LIST_20 ",%20,%21,%22,%23"
#define ANYOP_LIST_28 ANYOP_LIST_24 ",%24,%25,%26,%27"
#define ANYOP_LIST_36 ANYOP_LIST_32 ",%32,%33,%34,%35"
#define ANYOP_LIST_40 ANYOP_LIST_36 ",%36,%37,%38,%39"
#define ANYOP_LIST_44 ANYOP_LIST_40 ",%40,%41,%42,%43"
#define ANYOP_LIST_48 ANYOP_LIST_44 ",%44,%45,%46,%47"
#define ANYOP_LIST_52 ANYOP_LIST_48 ",%48,%49,%50,%51"
#define ANYOP_LIST_56 ANYOP_LIST_52 ",%52,%53,%54,%55"
#define ANYOP_LIST_60 ANYOP_LIST_56 ",%56,%57,%58,%59"
#define ANYOP_LIST_68 ANYOP_LIST_64 ",%64,%65,%66,%67"
#define ANYOP_LIST_72 ANYOP_LIST_68 ",%68,%69,%70,%71"
#define ANYOP_LIST_76 ANYOP_LIST_72 ",%72,%73,%74,%75"
#define ANYOP_LIST_80 ANYOP_LIST_76 ",%76,%77,%78,%79"
// R sums of a thread; a to g: the numbers of the operands behind them.
#define ANYOP_WGMMA(N, types, c, R, a, b, p, tail)                                      \
  asm volatile("{.reg .pred p;\n\tsetp.ne.b32 p, %" #p                                  \
               ", 0;\n\twgmma.mma_async.sync.aligned.m64n" #N types " {" ANYOP_LIST_##R \
               "}, %" #a ", %" #b ", p" tail ";}"                                       \
               : ANYOP_OUT_##R(c, 0)                                                    \
               : "l"(tile_a), "l"(tile_b), "r"(add), "n"(kOfA))
#define ANYOP_WGMMA_REGISTERS(N, types, R, a, b, c, d0, e, f, g)                                  \
  asm volatile("{.reg .pred p;\n\tsetp.ne.b32 p, %" #f                                            \
               ", 0;\n\twgmma.mma_async.sync.aligned.m64n" #N types " {" ANYOP_LIST_##R           \
               "}, {%" #a ",%" #b ",%" #c ",%" #d0 "}, %" #e ", p, 1, 1, %" #g ";}"               \
               : ANYOP_OUT_##R("f", 0)                                                            \
               : "r"(a_pairs[0]), "r"(a_pairs[1]), "r"(a_pairs[2]), "r"(a_pairs[3]), "l"(tile_b), \
                 "r"(add), "n"(kTransposed))
#define ANYOP_PRODUCT(N, R, a, b, c, d0, e, f, g)                                                \
  template <>                                                                                    \
  struct Product<N> {                                                                            \
    template <Operand kType, int kOfA = 0>                                                       \
    __device__ static void Add(typename SumOf<kType>::Type (&d)[R], uint64_t tile_a,             \
                               uint64_t tile_b, int add) {                                       \
      if constexpr (kType == Operand::kBFloat16)                                                 \
        ANYOP_WGMMA(N, "k16.f32.bf16.bf16", "f", R, a, b, c, ", 1, 1, %" #d0 ", 0");             \
      else if constexpr (kType == Operand::kFloat16)                                             \
        ANYOP_WGMMA(N, "k16.f32.f16.f16", "f", R, a, b, c, ", 1, 1, %" #d0 ", 0");               \
      else if constexpr (kType == Operand::kE4M3)                                                \
        ANYOP_WGMMA(N, "k32.f32.e4m3.e4m3", "f", R, a, b, c, ", 1, 1");                          \
      else if constexpr (kType == Operand::kE5M2)                                                \
        ANYOP_WGMMA(N, "k32.f32.e5m2.e5m2", "f", R, a, b, c, ", 1, 1");                          \
      else                                                                                       \
        ANYOP_WGMMA(N, "k32.s32.s8.s8", "r", R, a, b, c, "");                                    \
    }                                                                                            \
    template <Operand kType, int kOfA = 1>                                                       \
    __device__ static void AddTransposed(float (&d)[R], uint64_t tile_a, uint64_t tile_b,        \
                                         int add) {                                              \
      if constexpr (kType == Operand::kBFloat16)                                                 \
        ANYOP_WGMMA(N, "k16.f32.bf16.bf16", "f", R, a, b, c, ", 1, 1, %" #d0 ", 1");             \
      else                                                                                       \
        ANYOP_WGMMA(N, "k16.f32.f16.f16", "f", R, a, b, c, ", 1, 1, %" #d0 ", 1");               \
    }                                                                                            \
    template <Operand kType, int kTransposed>                                                    \
    __device__ static void AddRegisters(float (&d)[R], const uint32_t* a_pairs, uint64_t tile_b, \
                                        int add) {                                               \
      if constexpr (kType == Operand::kBFloat16)                                                 \
        ANYOP_WGMMA_REGISTERS(N, "k16.f32.bf16.bf16", R, a, b, c, d0, e, f, g);                  \
      else                                                                                       \
        ANYOP_WGMMA_REGISTERS(N, "k16.f32.f16.f16", R, a, b, c, d0, e, f, g);                    \
    }                                                                                            \
  };
ANYOP_PRODUCT(8, 4, 4, 5, 6, 7, 8, 9, 10)
ANYOP_PRODUCT(24, 12, 12, 13, 14, 15, 16, 17, 18)
ANYOP_PRODUCT(40, 20, 20, 21, 22, 23, 24, 25, 26)
ANYOP_PRODUCT(48, 24, 24, 25, 26, 27, 28, 29, 30)
ANYOP_PRODUCT(56, 28, 28, 29, 30, 31, 32, 33, 34)
ANYOP_PRODUCT(72, 36, 36, 37, 38, 39, 40, 41, 42)
ANYOP_PRODUCT(80, 40, 40, 41, 42, 43, 44, 45, 46)
ANYOP_PRODUCT(88, 44, 44, 45, 46, 47, 48, 49, 50)
ANYOP_PRODUCT(96, 48, 48, 49, 50, 51, 52, 53, 54)
ANYOP_PRODUCT(104, 52, 52, 53, 54, 55, 56, 57, 58)
ANYOP_PRODUCT(112, 56, 56, 57, 58, 59, 60, 61, 62)
ANYOP_PRODUCT(120, 60, 60, 61, 62, 63, 64, 65, 66)
ANYOP_PRODUCT(136, 68, 68, 69, 70, 71, 72, 73, 74)
ANYOP_PRODUCT(144, 72, 72, 73, 74, 75, 76, 77, 78)
ANYOP_PRODUCT(152, 76, 76, 77, 78, 79, 80, 81, 82)
ANYOP_PRODUCT(160, 80, 80, 81, 82, 83, 84, 85, 86)
ANYOP_PRODUCT(16, 8, 8, 9, 10, 11, 12, 13, 14)
ANYOP_PRODUCT(32, 16, 16, 17, 18, 19, 20, 21, 22)
ANYOP_PRODUCT(64, 32, 32, 33, 34, 35, 36, 37, 38)
ANYOP_PRODUCT(128, 64, 64, 65, 66, 67, 68, 69, 70)
ANYOP_PRODUCT(256, 128, 128, 129, 130, 131, 132, 133, 134)
#undef ANYOP_PRODUCT
#undef ANYOP_WGMMA
#undef ANYOP_WGMMA_REGISTERS

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_WGMMA_H_
