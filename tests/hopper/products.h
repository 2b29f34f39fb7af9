// SPDX-License-Identifier: Apache-2.0
// wgmma: 64 rows by kColumns, all types, both operands' layouts, A from registers. Small integers,
// so that every sum is exact.
#pragma once

#include <cuda_fp8.h>

#include <type_traits>

#include "primitives.h"

namespace hopper {

// Numbers by row and k.
__host__ __device__ inline int OfA(int row, int k) { return (row * 3 + k * 5) % 7 - 3; }
__host__ __device__ inline int OfB(int column, int k) { return (column * 5 + k * 3) % 5 - 2; }

enum class Layout { kRows, kTransposed, kOfBTransposed, kRegisters, kRegistersTransposed };

template <Operand kType>
__device__ void Put(uint8_t* at, int value) {
  if constexpr (kType == Operand::kBFloat16)
    *reinterpret_cast<__nv_bfloat16*>(at) = __float2bfloat16(static_cast<float>(value));
  else if constexpr (kType == Operand::kFloat16)
    *reinterpret_cast<__half*>(at) = __float2half(static_cast<float>(value));
  else if constexpr (kType == Operand::kInt8)
    *reinterpret_cast<int8_t*>(at) = static_cast<int8_t>(value);
  else
    *at = __nv_cvt_float_to_fp8(static_cast<float>(value), __NV_SATFINITE,
                                kType == Operand::kE4M3 ? __NV_E4M3 : __NV_E5M2);
}
template <typename T>
__device__ uint32_t PairOfA(int row, int k) {
  return NarrowTwo(T(), static_cast<float>(OfA(row, k)), static_cast<float>(OfA(row, k + 1)));
}

// One tile: 128 bytes of k, or 64 rows of k where operands are transposed.
template <Operand kType, int kColumns, Layout kLayout>
__global__ __launch_bounds__(128) void MultiplyTile(float* out) {
  constexpr int kBytes = BytesOf(kType), kDepth = 128 / kBytes;
  constexpr bool kTurned = kLayout == Layout::kTransposed || kLayout == Layout::kOfBTransposed ||
                           kLayout == Layout::kRegistersTransposed;
  constexpr bool kTurnsA = kTurned && kLayout != Layout::kOfBTransposed;
  constexpr uint32_t kPanel = 64 * 128;
  extern __shared__ __align__(1024) uint8_t shared[];
  uint8_t* const b = shared + kPanel;
  const auto put = [&](uint8_t* tile, bool turned, int row, int k, int value) {
    // Element (row, k): rows of k, or panels of 64 rows whose lines are k.
    const int line = turned ? k : row, in_line = (turned ? row % 64 : k) * kBytes;
    uint8_t* const panel = tile + (turned ? row / 64 * kPanel : 0);
    Put<kType>(panel + Swizzled(line, in_line / 16) + in_line % 16, value);
  };
  for (int i = threadIdx.x; i < 64 * kDepth; i += 128)
    put(shared, kTurnsA, i / kDepth, i % kDepth, OfA(i / kDepth, i % kDepth));
  for (int i = threadIdx.x; i < kColumns * kDepth; i += 128)
    put(b, kTurned, i / kDepth, i % kDepth, OfB(i / kDepth, i % kDepth));
  FenceForTma();
  __syncthreads();
  const uint32_t a_at = SharedAddress(shared), b_at = SharedAddress(b);
  typename SumOf<kType>::Type sums[kColumns / 2];
  const int thread = threadIdx.x, first = thread / 32 * 16 + thread % 32 / 4, two = thread % 4 * 2;
  FenceProducts();
  for (int i = 0; i < 4; ++i) {  // 32 bytes of k, or 16 lines
    const uint64_t rows = TileOf(b_at) + 2 * i, panels = PanelsOf(b_at + 2048 * i, kPanel);
    if constexpr (kLayout == Layout::kRows) {
      Product<kColumns>::template Add<kType>(sums, TileOf(a_at) + 2 * i, rows, i);
    } else if constexpr (kLayout == Layout::kOfBTransposed) {
      Product<kColumns>::template AddTransposed<kType, 0>(sums, TileOf(a_at) + 2 * i, panels, i);
    } else if constexpr (kLayout == Layout::kTransposed) {
      Product<kColumns>::template AddTransposed<kType>(sums, PanelsOf(a_at + 2048 * i, kPanel),
                                                       panels, i);
    } else {
      using T = std::conditional_t<kType == Operand::kFloat16, __half, __nv_bfloat16>;
      const int k = 16 * i + two;
      const uint32_t pairs[4] = {PairOfA<T>(first, k), PairOfA<T>(first + 8, k),
                                 PairOfA<T>(first, k + 8), PairOfA<T>(first + 8, k + 8)};
      Product<kColumns>::template AddRegisters<kType, kTurned>(sums, pairs, kTurned ? panels : rows,
                                                               i);
      CommitProducts();
      WaitForProducts<0>();  // pairs are this round's
      Pin(sums);
    }
  }
  CommitProducts();
  WaitForProducts<0>();
  Pin(sums);
  for (int i = 0; i < kColumns / 2; ++i) {
    const int row = first + i / 2 % 2 * 8, column = i / 4 * 8 + two + i % 2;
    out[row * kColumns + column] = static_cast<float>(sums[i]);
  }
}

template <Operand kType, int kColumns, Layout kLayout>
void Multiply() {
  constexpr int kDepth = 128 / BytesOf(kType), kShared = (64 + 256) * 128;
  constexpr auto kernel = MultiplyTile<kType, kColumns, kLayout>;
  Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared),
        "shared memory");
  Numbers<float> out(64 * kColumns, -1e9f);
  kernel<<<1, 128, kShared>>>(out.data());
  Finish();
  char what[64];
  std::snprintf(what, sizeof what, "type %d, %d columns", static_cast<int>(kType), kColumns);
  Compare(what, out.Now(), [](size_t i) {
    int sum = 0;
    for (int k = 0; k < kDepth; ++k) sum += OfA(i / kColumns, k) * OfB(i % kColumns, k);
    return sum;
  });
}
template <Operand kType, Layout kLayout>
void MultiplyAllColumns() {
  Multiply<kType, 16, kLayout>();
  Multiply<kType, 32, kLayout>();
  Multiply<kType, 64, kLayout>();
  Multiply<kType, 128, kLayout>();
  Multiply<kType, 256, kLayout>();
}
inline void Products() {
  MultiplyAllColumns<Operand::kBFloat16, Layout::kRows>();
  MultiplyAllColumns<Operand::kFloat16, Layout::kRows>();
  MultiplyAllColumns<Operand::kE4M3, Layout::kRows>();
  MultiplyAllColumns<Operand::kE5M2, Layout::kRows>();
  MultiplyAllColumns<Operand::kInt8, Layout::kRows>();
}
inline void ProductsTransposed() {
  MultiplyAllColumns<Operand::kBFloat16, Layout::kTransposed>();
  MultiplyAllColumns<Operand::kFloat16, Layout::kTransposed>();
  MultiplyAllColumns<Operand::kBFloat16, Layout::kOfBTransposed>();
  MultiplyAllColumns<Operand::kFloat16, Layout::kOfBTransposed>();
}
inline void ProductsOfRegisters() {
  MultiplyAllColumns<Operand::kBFloat16, Layout::kRegisters>();
  MultiplyAllColumns<Operand::kFloat16, Layout::kRegisters>();
  MultiplyAllColumns<Operand::kBFloat16, Layout::kRegistersTransposed>();
  MultiplyAllColumns<Operand::kFloat16, Layout::kRegistersTransposed>();
}

}  // namespace hopper
