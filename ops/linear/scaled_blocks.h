// SPDX-License-Identifier: Apache-2.0
// Rows of 8-bit floats with a scale for each 128 of K, times these scales, in float32.
#pragma once

#include "byte_floats.h"

namespace anyop::cpu {

constexpr int64_t kScaleBlock = 128;

// One row of K; scales[k * step] is that of block k.
inline void WidenScaledRow(AnyopDtype dtype, const char* from, int64_t K, const float* scales,
                           int64_t step, float* to) {
  for (int64_t k = 0; k < K; k += kScaleBlock) {
    const int64_t n = K - k < kScaleBlock ? K - k : kScaleBlock;
    WidenBytes(dtype, from + k, n, scales[k / kScaleBlock * step], to + k);
  }
}

// Rows of a matrix with scales for each row, or for each 128 rows (kScaleBlock).

struct ScaledRows {
  AnyopDtype dtype;
  int64_t K, rows_a_scale;
  const char* data;
  const float* scales;
  int64_t row_step, block_step;  // of scales

  void operator()(int64_t row, void* to) const {
    const float* of_row = scales + row / rows_a_scale * row_step;
    WidenScaledRow(dtype, data + row * K, K, of_row, block_step, static_cast<float*>(to));
  }
};

}  // namespace anyop::cpu
