// SPDX-License-Identifier: Apache-2.0
// The kernel that moves: raw pointers and sizes, no framework. The same file serves all three
// bindings.
#ifndef FROM_PYBIND11_BIAS_GELU_ROWS_H_
#define FROM_PYBIND11_BIAS_GELU_ROWS_H_

#include <cmath>
#include <cstdint>

// out[r,d] = gelu(x[r,d] + bias[d]), contiguous rows of D. Reads 4 bytes and writes 4 for each
// element.
inline void BiasGeluRows(const float* x, const float* bias, float* out, int64_t rows, int64_t D) {
  constexpr float kRootOfHalf = 0.70710678f;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t d = 0; d < D; ++d) {
      const float a = x[r * D + d] + bias[d];
      out[r * D + d] = 0.5f * a * (1.0f + std::erf(a * kRootOfHalf));
    }
  }
}

#endif  // FROM_PYBIND11_BIAS_GELU_ROWS_H_
