// SPDX-License-Identifier: Apache-2.0
// A product on CUDA that ends in a bias, a residual and an activation, rounded once.
#pragma once

#include "activation_cuda.h"
#include "cuda_product.h"

namespace anyop::cuda {

// out = activation(x weight^T + bias + residual); pre is what the activation is applied to. All of
// one dtype; x (rows, K), weight (N, K), out and pre (rows, N) lie without gaps. nullptr: none.
struct EndedProduct {
  AnyopDtype dtype;
  int64_t rows, N, K;
  const void *x, *weight, *bias;
  const AnyopTensor* residual;  // its rows lie without steps inside
  void *out, *pre;
  Activation activation;
};
int32_t Multiply(AnyopCall* call, const EndedProduct& product);

}  // namespace anyop::cuda
