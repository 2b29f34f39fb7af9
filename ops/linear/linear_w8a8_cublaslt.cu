// SPDX-License-Identifier: Apache-2.0
// linear_w8a8 of float8_e4m3fn with one scale for each operand on CUDA, by cuBLASLt.
#include "anyop/ops/linear_w8a8.h"
#include "cuda_product.h"

namespace {

bool IsOneNumber(const AnyopTensor* scale) {
  return scale->strides[0] == 0 || scale->shape[0] == 1;
}

// cuBLASLt's bias has the type of the result, of 16 bits.
bool TakesBias(const AnyopTensor* bias, AnyopDtype out) {
  return !bias || (AnyopDtypeOf(bias) == out && out != kAnyopFloat32);
}

}  // namespace

extern "C" int32_t anyop_linear_w8a8_cuda_cublaslt(const LinearW8a8Args* args, AnyopCall* call) {
  anyop::cublaslt::Product product;
  product.dtype = kAnyopFloat8E4M3FN;
  product.out_dtype = AnyopDtypeOf(args->out);
  if (!IsOneNumber(args->x_scale) || !IsOneNumber(args->weight_scale))
    return call->fail(call, kAnyopDeclined, "cuBLASLt takes one scale for each operand here");
  if (!TakesBias(args->bias, product.out_dtype))
    return call->fail(call, kAnyopDeclined, "cuBLASLt takes a bias of the result's 16 bits alone");
  product.M = args->M;
  product.N = args->N;
  product.K = args->K;
  product.a = {args->x->data, args->K, 1, 0};
  product.b = {args->weight->data, 1, args->K, 0};
  product.out = args->out->data;
  product.out_row_stride = args->N;
  product.a_scale = static_cast<const float*>(args->x_scale->data);
  product.b_scale = static_cast<const float*>(args->weight_scale->data);
  if (args->bias) {
    product.epilogue = anyop::cublaslt::kAddBias;
    product.bias = args->bias->data;
  }
  return anyop::cuda::MultiplyScaled(call, product);
}
