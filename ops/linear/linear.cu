// SPDX-License-Identifier: Apache-2.0
// x by the transpose of weight, plus bias, on CUDA: cuBLASLt, which adds the bias before it rounds.
#include "anyop/ops/linear.h"
#include "cuda_product.h"

namespace {

int32_t RunLinear(const LinearArgs* args, AnyopCall* call, bool tf32) {
  anyop::cublaslt::Product product;
  product.tf32 = tf32;
  product.dtype = product.out_dtype = AnyopDtypeOf(args->out);
  product.M = args->rows;
  product.N = args->N;
  product.K = args->K;
  product.a = {args->x->data, args->K, 1, 0};
  product.b = {args->weight->data, 1, args->K, 0};
  product.out = args->out->data;
  product.out_row_stride = args->N;
  if (args->bias) {
    product.epilogue = anyop::cublaslt::kAddBias;
    product.bias = args->bias->data;
  }
  return anyop::cuda::Multiply(call, product);
}

}  // namespace

extern "C" int32_t anyop_linear_cuda(const LinearArgs* args, AnyopCall* call) {
  return RunLinear(args, call, false);
}
extern "C" int32_t anyop_linear_cuda_tf32(const LinearArgs* args, AnyopCall* call) {
  return RunLinear(args, call, true);
}
