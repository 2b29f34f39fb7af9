// SPDX-License-Identifier: Apache-2.0
// What gradients of products are made of on CUDA.
#pragma once

#include "activation_cuda.h"
#include "cuda_product.h"

namespace anyop::cuda {

// The gradient in front of an activation: to = grad * activation'(pre), rounded, and the sums of
// its columns (N) before it was. nullptr: not wanted. Of one shape and dtype, grad perhaps float32.
struct SlopeProduct {
  const AnyopTensor *grad, *pre;
  const AnyopTensor *to, *sums;
  Activation activation;
};
int32_t MultiplyBySlope(AnyopCall* call, const SlopeProduct& product);

// sums[n] = sum over all rows of grad[..., n].
int32_t SumColumns(AnyopCall* call, const AnyopTensor* grad, const AnyopTensor* sums);

// grad (rows, N) by weight (N, K).
cublaslt::Product GradientOfRows(AnyopDtype dtype, int64_t rows, int64_t N, int64_t K,
                                 const void* grad, const void* weight, void* out);
// The transpose of grad (rows, N) by x (rows, K).
cublaslt::Product GradientOfWeight(AnyopDtype dtype, int64_t rows, int64_t N, int64_t K,
                                   const void* grad, const void* x, void* out);

}  // namespace anyop::cuda
