// SPDX-License-Identifier: Apache-2.0
// A product in float32, block by block of its rows, that is added to what is there and rounded
// once.
#pragma once

#include "anyop/cpu/rows.h"
#include "gemm_blocks.h"

namespace anyop::cpu {

// sums: rows of K, which belong to those of `to` from row `first` on.
struct AddedSums {
  const AnyopTensor* to;
  int64_t K;
  int64_t first = 0;
  const float* sums = nullptr;
};

[[maybe_unused]] ANYOP_CPU_CLONES void AddRows(const AddedSums* work, int64_t begin, int64_t end) {
  const Rows to(work->to);
  const int64_t K = work->K;
  for (int64_t i = begin; i < end; ++i) {
    char* row = to[work->first + i];
    RowReader<float> before(to.dtype(), row, K);
    RowReader<float> more(kAnyopFloat32, reinterpret_cast<const char*>(work->sums + i * K), K);
    RowWriter<float> after(to.dtype(), row);
    MapRow(K, [](float a, float b) { return a + b; }, after, before, more);
  }
}

// The product, of which problem.out is not used, to the rows of `to` from row `top` on.
inline int32_t AddProduct(AnyopCall* call, const GemmProblem& problem, const AnyopTensor* to,
                          int64_t top) {
  return GemmInBlocks(call, problem, [&](int64_t first, int64_t rows, const void* sums) {
    const AddedSums work = {to, problem.N, top + first, static_cast<const float*>(sums)};
    RunRows(call, &work, rows, work.K, AddRows);
  });
}

}  // namespace anyop::cpu
