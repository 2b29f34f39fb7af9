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
};

// out[..., M, N] = a[..., M, K] b[..., K, N] + bias[N]; all of one dtype, out and bias contiguous.
// float16 and bfloat16 are multiplied and summed in float32 and rounded once.
struct GemmProblem {
  AnyopDtype dtype;
  int64_t M;
  int64_t N;
  int64_t K;
  int32_t batch_dims;
  const int64_t* batch_shape;
  GemmSide a;
  GemmSide b;
  const void* bias;  // nullptr: none
  void* out;
};

int32_t Gemm(AnyopCall* call, const GemmProblem& problem);

}  // namespace anyop
