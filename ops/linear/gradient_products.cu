// SPDX-License-Identifier: Apache-2.0
// The gradient in front of an activation, with the sums of its columns in the same pass; sums of
// columns alone; and the products of gradients.
//
// cuBLASLt's own sums, beside a product, took longer (one H200, 8192x14336: 103 us; torch's sum
// 75).
#include "../elementwise/map_sum_cuda.h"
#include "gradient_products.h"

namespace anyop::cuda {
namespace {

struct TimesSlope {
  Activation activation;
  template <typename W>
  __device__ W operator()(const W (&in)[2], W& written) const {
    return written = in[0] * SlopeOf(activation, in[1]);
  }
};

struct ItsSelf {
  template <typename W>
  __device__ W operator()(const W (&in)[1], W&) const {
    return in[0];
  }
};

cublaslt::Product Contiguous(AnyopDtype dtype, int64_t M, int64_t N, int64_t K, void* out) {
  cublaslt::Product p;
  p.dtype = p.out_dtype = dtype;
  p.M = M, p.N = N, p.K = K;
  p.out = out;
  p.out_row_stride = N;
  return p;
}

}  // namespace

int32_t MultiplyBySlope(AnyopCall* call, const SlopeProduct& product) {
  const AnyopTensor& grad = *product.grad;
  int64_t N = grad.shape[grad.ndim - 1], one = 1;
  AnyopTensor none = grad;
  none.data = nullptr;
  none.ndim = 1;
  none.shape = &N;
  none.strides = &one;
  return RunMapSum(call, TimesSlope{product.activation}, {product.grad, product.pre}, product.to, 1,
                   product.sums ? product.sums : &none);
}

int32_t SumColumns(AnyopCall* call, const AnyopTensor* grad, const AnyopTensor* sums) {
  return RunMapSum(call, ItsSelf(), {grad}, nullptr, 1, sums);
}

cublaslt::Product GradientOfRows(AnyopDtype dtype, int64_t rows, int64_t N, int64_t K,
                                 const void* grad, const void* weight, void* out) {
  cublaslt::Product p = Contiguous(dtype, rows, K, N, out);
  p.a = {grad, N, 1, 0};
  p.b = {weight, K, 1, 0};
  return p;
}

cublaslt::Product GradientOfWeight(AnyopDtype dtype, int64_t rows, int64_t N, int64_t K,
                                   const void* grad, const void* x, void* out) {
  cublaslt::Product p = Contiguous(dtype, N, K, rows, out);
  p.a = {grad, 1, N, 0};
  p.b = {x, K, 1, 0};
  return p;
}

}  // namespace anyop::cuda
