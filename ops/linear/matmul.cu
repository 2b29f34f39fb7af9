// SPDX-License-Identifier: Apache-2.0
// Batched matrix product of strided matrices on CUDA, by cuBLASLt.
#include "anyop/ops/matmul.h"
#include "cuda_product.h"

namespace {

int32_t RunMatmul(const MatmulArgs* args, AnyopCall* call, bool tf32) {
  const AnyopTensor &a = *args->a, &b = *args->b, &out = *args->out;
  const int32_t dims = out.ndim - 2;
  anyop::cuda::Leading batch;
  for (int32_t d = 0; d < dims; ++d)
    batch.Put(out.shape[d], a.strides[d], b.strides[d], out.strides[d]);
  anyop::cublaslt::Product product;
  product.tf32 = tf32;
  product.dtype = product.out_dtype = AnyopDtypeOf(&out);
  product.M = args->M;
  product.N = args->N;
  product.K = args->K;
  product.a = {a.data, a.strides[dims], a.strides[dims + 1], 0};
  product.b = {b.data, b.strides[dims], b.strides[dims + 1], 0};
  product.out = out.data;
  product.out_row_stride = args->N;
  return anyop::cuda::Multiply(call, product, batch);
}

}  // namespace

extern "C" int32_t anyop_matmul_cuda(const MatmulArgs* args, AnyopCall* call) {
  return RunMatmul(args, call, false);
}
extern "C" int32_t anyop_matmul_cuda_tf32(const MatmulArgs* args, AnyopCall* call) {
  return RunMatmul(args, call, true);
}
