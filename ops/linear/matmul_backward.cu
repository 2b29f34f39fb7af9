// SPDX-License-Identifier: Apache-2.0
// Gradients of matmul on CUDA: two batched products by cuBLASLt, summed over the leading sizes in
// which a matrix was broadcast.
#include "anyop/ops/matmul_backward.h"
#include "cuda_product.h"

namespace anyop::cuda {
namespace {

cublaslt::Matrix Side(const AnyopTensor& tensor, bool transposed) {
  const int64_t* strides = tensor.strides + tensor.ndim - 2;
  return {tensor.data, strides[transposed ? 1 : 0], strides[transposed ? 0 : 1], 0};
}

// result = a b, or with one of them transposed, summed where the result has no size of its own.
int32_t MultiplyInto(AnyopCall* call, const AnyopTensor& a, bool transpose_a, const AnyopTensor& b,
                     bool transpose_b, const AnyopTensor& full, const AnyopTensor& result,
                     bool tf32) {
  Leading batch, sum;
  for (int32_t d = 0; d < full.ndim - 2; ++d) {
    const int32_t own = d - (full.ndim - result.ndim);  // the same size in the result
    const bool kept = own >= 0 && result.shape[own] == full.shape[d];
    (kept ? batch : sum)
        .Put(full.shape[d], a.strides[d], b.strides[d], kept ? result.strides[own] : 0);
  }
  cublaslt::Product product;
  product.tf32 = tf32;
  product.dtype = product.out_dtype = AnyopDtypeOf(&result);
  product.M = result.shape[result.ndim - 2];
  product.N = result.shape[result.ndim - 1];
  product.K = a.shape[a.ndim - (transpose_a ? 2 : 1)];
  product.a = Side(a, transpose_a);
  product.b = Side(b, transpose_b);
  product.out = result.data;
  product.out_row_stride = product.N;
  return Multiply(call, product, batch, sum);
}

int32_t RunGradients(const MatmulBackwardArgs* args, AnyopCall* call, bool tf32) {
  const AnyopTensor &grad = *args->grad_out, &a = *args->a, &b = *args->b;
  if (args->grad_a)
    if (const int32_t status = MultiplyInto(call, grad, false, b, true, grad, *args->grad_a, tf32))
      return status;
  return args->grad_b ? MultiplyInto(call, a, true, grad, false, grad, *args->grad_b, tf32)
                      : kAnyopOk;
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_matmul_backward_cuda(const MatmulBackwardArgs* args, AnyopCall* call) {
  return anyop::cuda::RunGradients(args, call, false);
}
extern "C" int32_t anyop_matmul_backward_cuda_tf32(const MatmulBackwardArgs* args,
                                                   AnyopCall* call) {
  return anyop::cuda::RunGradients(args, call, true);
}
