/* SPDX-License-Identifier: Apache-2.0 */
// Products of rows of tables, found by index, and rows, one or two added: out[i] =
// table[indices[i]]
// * rows[i]. The lanes of a row write it in pieces of 16 bytes where all lie so. In float32
// (float64 for float64), rounded once. Of an index outside the table: zeros.
#ifndef ANYOP_OPS_EMBEDDING_INDEXED_PRODUCTS_CUDA_H_
#define ANYOP_OPS_EMBEDDING_INDEXED_PRODUCTS_CUDA_H_

#include "anyop/cuda/rows.h"

namespace anyop::cuda {

struct IndexedProduct {
  const AnyopTensor* table;  // (V, D), or null: no such product
  const AnyopTensor* rows;   // (N, D)
};

namespace {

constexpr int kProductThreads = 256;

struct Products {
  const void* indices;
  const void* tables[2];  // null: no such product
  const void* rows[2];
  void* out;
  int64_t N, V, D;
  int lanes;
};

template <typename T, int kPer, typename Index>
__global__ void __launch_bounds__(kProductThreads)
    MultiplyRows(const __grid_constant__ Products p) {
  const int lane = threadIdx.x % p.lanes, of_block = blockDim.x / p.lanes;
  for (int64_t i = int64_t{blockIdx.x} * of_block + threadIdx.x / p.lanes; i < p.N;
       i += int64_t{gridDim.x} * of_block) {
    const int64_t index = static_cast<const Index*>(p.indices)[i];
    const bool inside = static_cast<uint64_t>(index) < static_cast<uint64_t>(p.V);
    for (int64_t d = int64_t{lane} * kPer; d < p.D; d += int64_t{p.lanes} * kPer) {
      Piece<Wide<T>, kPer> sum = {};
#pragma unroll
      for (int t = 0; t < 2; ++t) {
        if (!inside || !p.tables[t]) continue;
        const auto a = ReadPiece<kPer>(static_cast<const T*>(p.tables[t]) + index * p.D + d, true);
        const auto b = ReadPiece<kPer>(static_cast<const T*>(p.rows[t]) + i * p.D + d, true);
#pragma unroll
        for (int k = 0; k < kPer; ++k) sum.at[k] += a.at[k] * b.at[k];
      }
      WritePiece<kPer>(static_cast<T*>(p.out) + i * p.D + d, true, sum);
    }
  }
}

template <typename T, int kPer>
int32_t RunProducts(AnyopCall* call, Products p, bool narrow) {
  const RowThreads threads(p.D / kPer, 1, kProductThreads);
  p.lanes = threads.lanes;
  const Launch launch = threads.LaunchFor(p.N);
  return narrow ? launch.Run(call, MultiplyRows<T, kPer, int32_t>, p)
                : launch.Run(call, MultiplyRows<T, kPer, int64_t>, p);
}

}  // namespace

inline int32_t MultiplyByIndex(AnyopCall* call, const AnyopTensor& indices, IndexedProduct first,
                               IndexedProduct second, const AnyopTensor& out, int64_t V) {
  const auto data = [](const AnyopTensor* tensor) { return tensor ? tensor->data : nullptr; };
  const Products p = {indices.data,
                      {data(first.table), data(second.table)},
                      {data(first.rows), data(second.rows)},
                      out.data,
                      out.shape[0],
                      V,
                      out.shape[1],
                      0};
  if (p.N == 0 || p.D == 0) return kAnyopOk;
  return WithFloating(AnyopDtypeOf(&out), [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) < 8) {
      if (p.D % kPerVector<T> == 0 && IsAligned(p.tables[0], 16) && IsAligned(p.tables[1], 16) &&
          IsAligned(p.rows[0], 16) && IsAligned(p.rows[1], 16) && IsAligned(p.out, 16))
        return RunProducts<T, kPerVector<T>>(call, p, indices.dtype_bits == 32);
    }
    return RunProducts<T, 1>(call, p, indices.dtype_bits == 32);
  });
}

}  // namespace anyop::cuda

#endif  // ANYOP_OPS_EMBEDDING_INDEXED_PRODUCTS_CUDA_H_
