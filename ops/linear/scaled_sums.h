// SPDX-License-Identifier: Apache-2.0
// What becomes of the sums of a product: scaled by row and column, a bias added, rounded once.
#pragma once

#include "anyop/cpu/rows.h"

namespace anyop::cpu {

// A block of the results, rows [m, m + rows) and columns [n, n + cols) of out, whose rows have N
// numbers. The scales are strided vectors; nullptr: 1. bias: of float types, or nullptr.
struct ScaledSums {
  const AnyopTensor *out, *row_scale, *col_scale, *bias;
  int64_t N;
  int64_t first_row = 0;  // of out, that m counts from
  int64_t m = 0, n = 0, cols = 0;
  const float* sums = nullptr;
};

[[maybe_unused]] ANYOP_CPU_CLONES __attribute__((noinline)) void StoreScaledRows(
    const ScaledSums* work, int64_t begin, int64_t end) {
  const auto scale = [](const AnyopTensor* of, int64_t i) {
    return of ? static_cast<const float*>(of->data)[i * of->strides[0]] : 1.0f;
  };
  const AnyopDtype dtype = AnyopDtypeOf(work->out);
  const int64_t item = work->out->dtype_bits / 8, n = work->n;
  for (int64_t at = 0; at < work->cols; at += kBlock) {
    const int64_t size = work->cols - at < kBlock ? work->cols - at : kBlock;
    float factors[kBlock], more[kBlock];
    for (int64_t i = 0; i < size; ++i) factors[i] = scale(work->col_scale, n + at + i), more[i] = 0;
    if (work->bias) {
      const int64_t bias_item = work->bias->dtype_bits / 8;
      RowReader<float> bias(AnyopDtypeOf(work->bias),
                            static_cast<const char*>(work->bias->data) + (n + at) * bias_item,
                            size);
      __builtin_memcpy(more, bias.Read(0, size), size * sizeof(float));
    }
    for (int64_t i = begin; i < end; ++i) {
      const int64_t row = work->first_row + work->m + i;
      const float factor = scale(work->row_scale, row);
      char* to = static_cast<char*>(work->out->data) + (row * work->N + n + at) * item;
      RowWriter<float> out(dtype, to);
      Apply(
          size, [factor](float s, float f, float b) { return s * factor * f + b; }, out.Target(0),
          work->sums + i * work->cols + at, factors, more);
      out.Write(0, size);
    }
  }
}

// The `store` of a FilledProduct.
inline auto StoreScaled(AnyopCall* call, ScaledSums work) {
  return [call, work](int64_t m, int64_t rows, int64_t n, int64_t cols, const float* sums) {
    ScaledSums block = work;
    block.m = m, block.n = n, block.cols = cols, block.sums = sums;
    RunRows(call, &block, rows, cols, StoreScaledRows);
  };
}

// So with a block of all rows of one thread's: `work` is a ScaledSums.
[[maybe_unused]] inline void StoreScaledBlock(const void* work, int64_t m, int64_t rows, int64_t n,
                                              int64_t cols, const float* sums) {
  ScaledSums block = *static_cast<const ScaledSums*>(work);
  block.m = m, block.n = n, block.cols = cols, block.sums = sums;
  StoreScaledRows(&block, 0, rows);
}

}  // namespace anyop::cpu
