// SPDX-License-Identifier: Apache-2.0
// Batched matrix product for every element type and layout, divided over the call's threads.
#pragma once

#include "anyop/kernel.h"

namespace anyop {

struct GemmSide {
  const void* data;
  int64_t row_stride;  // in elements; any value
  int64_t col_stride;
  const int64_t* batch_strides;
  const int64_t* sum_strides;
};

// out[..., M, N] = sum_s a[..., s, M, K] b[..., s, K, N] + bias[N]; all of one dtype, out and bias
// contiguous. s stands for any number of dimensions, mostly none: the gradient of a matrix that was
// broadcast is a sum over them. float16 and bfloat16 are multiplied and summed in float32 and
// rounded once, or not at all (wide_out).
struct GemmProblem {
  AnyopDtype dtype;
  int64_t M;
  int64_t N;
  int64_t K;
  int32_t batch_dims;
  const int64_t* batch_shape;
  int32_t sum_dims;
  const int64_t* sum_shape;
  GemmSide a;
  GemmSide b;
  const void* bias;  // nullptr: none
  void* out;
  // The same bits for any number of threads, as gradients have them: a thread does not join
  // neighbouring tiles, which costs some per cent.
  bool fixed_tiles;
  // out holds float32, whatever the dtype of float16, bfloat16 and float32 is.
  bool wide_out;
};

// Whether a matrix lies in rows without steps inside.
inline bool LiesInRows(const GemmSide& side, int64_t rows, int64_t cols) {
  return (side.col_stride == 1 || cols == 1) && (side.row_stride >= cols || rows == 1);
}
inline bool LiesInColumns(const GemmSide& side, int64_t rows, int64_t cols) {
  return (side.row_stride == 1 || rows == 1) && (side.col_stride >= rows || cols == 1);
}

// Where the index-th of some dimensions lies.
inline int64_t OffsetOf(int64_t index, int32_t dims, const int64_t* shape, const int64_t* strides) {
  int64_t offset = 0;
  for (int32_t d = dims - 1; d >= 0; --d) {
    offset += index % shape[d] * strides[d];
    index /= shape[d];
  }
  return offset;
}

int32_t Gemm(AnyopCall* call, const GemmProblem& problem);

}  // namespace anyop
