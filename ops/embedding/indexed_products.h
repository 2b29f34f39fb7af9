// SPDX-License-Identifier: Apache-2.0
// Products of rows of tables, found by index, and rows, one or two added: out[i] =
// table[indices[i]]
// * rows[i]. Each thread writes a range of rows. In float32 (float64 for float64), rounded once.
#ifndef ANYOP_OPS_EMBEDDING_INDEXED_PRODUCTS_H_
#define ANYOP_OPS_EMBEDDING_INDEXED_PRODUCTS_H_

#include "anyop/cpu/rows.h"

namespace anyop::cpu {

struct IndexedProduct {
  const AnyopTensor* table;  // (V, D), or null: no such product
  const AnyopTensor* rows;   // (N, D)
};

struct IndexedProducts {
  const AnyopTensor* indices;  // each in the table
  IndexedProduct first, second;
  AnyopTensor* out;  // (N, D); 0 without products
  int64_t N, D;
};

namespace {

template <typename Wide>
inline void MultiplyRow(const IndexedProducts& p, AnyopDtype dtype, int64_t i) {
  const auto* indices = p.indices->data;
  const int64_t index = p.indices->dtype_bits == 32 ? static_cast<const int32_t*>(indices)[i]
                                                    : static_cast<const int64_t*>(indices)[i];
  const int64_t row_bytes = p.D * (p.out->dtype_bits / 8);
  const auto row = [&](const AnyopTensor* tensor, int64_t at) {
    return RowReader<Wide, kBlock>(dtype, static_cast<char*>(tensor->data) + at * row_bytes, p.D);
  };
  RowWriter<Wide> out(dtype, static_cast<char*>(p.out->data) + i * row_bytes);
  const bool both = p.first.table && p.second.table;
  const IndexedProduct& one = p.first.table ? p.first : p.second;
  auto a = row(one.table, index), b = row(one.rows, i);
  if (!both) return MapRow(p.D, [](Wide x, Wide y) { return x * y; }, out, a, b);
  auto c = row(p.second.table, index), d = row(p.second.rows, i);
  const auto add = [](Wide x, Wide y, Wide z, Wide w) { return x * y + z * w; };
  MapRow(p.D, add, out, a, b, c, d);
}

[[maybe_unused]] ANYOP_CPU_CLONES void RunProducts(const IndexedProducts* p, int64_t begin,
                                                   int64_t end) {
  const AnyopDtype dtype = AnyopDtypeOf(p->out);
  WithFloat(dtype, [&](auto wide) {
    for (int64_t i = begin; i < end; ++i) MultiplyRow<decltype(wide)>(*p, dtype, i);
  });
}

}  // namespace

inline int32_t MultiplyByIndex(AnyopCall* call, const IndexedProducts& p) {
  if (p.first.table || p.second.table) return RunRows(call, &p, p.N, p.D, RunProducts);
  __builtin_memset(p.out->data, 0, p.N * p.D * (p.out->dtype_bits / 8));
  return kAnyopOk;
}

}  // namespace anyop::cpu

#endif  // ANYOP_OPS_EMBEDDING_INDEXED_PRODUCTS_H_
