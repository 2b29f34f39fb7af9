// SPDX-License-Identifier: Apache-2.0
// x by the transpose of weight, plus bias, as one matrix product; gemm.cc divides it over the
// threads.
#include "anyop/ops/linear.h"

#include "gemm.h"

extern "C" int32_t anyop_linear_cpu(const LinearArgs* args, AnyopCall* call) {
  anyop::GemmProblem problem = {};
  problem.dtype = AnyopDtypeOf(args->out);
  problem.M = args->rows;
  problem.N = args->N;
  problem.K = args->K;
  problem.a = {args->x->data, args->K, 1, nullptr, nullptr};
  problem.b = {args->weight->data, 1, args->K, nullptr, nullptr};
  problem.bias = args->bias ? args->bias->data : nullptr;
  problem.out = args->out->data;
  return anyop::Gemm(call, problem);
}
