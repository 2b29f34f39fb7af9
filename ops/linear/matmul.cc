// SPDX-License-Identifier: Apache-2.0
// Batched matrix product of strided matrices; gemm.cc divides it over the threads.
#include "anyop/ops/matmul.h"

#include "gemm.h"

namespace {

anyop::GemmSide Side(const AnyopTensor& tensor) {
  const int64_t* strides = tensor.strides + tensor.ndim - 2;
  return {tensor.data, strides[0], strides[1], tensor.strides, nullptr};
}

}  // namespace

extern "C" int32_t anyop_matmul_cpu(const MatmulArgs* args, AnyopCall* call) {
  anyop::GemmProblem problem = {};
  problem.dtype = AnyopDtypeOf(args->out);
  problem.M = args->M;
  problem.N = args->N;
  problem.K = args->K;
  problem.batch_dims = args->out->ndim - 2;
  problem.batch_shape = args->out->shape;
  problem.a = Side(*args->a);
  problem.b = Side(*args->b);
  problem.out = args->out->data;
  return anyop::Gemm(call, problem);
}
