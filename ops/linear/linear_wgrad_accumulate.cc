// SPDX-License-Identifier: Apache-2.0
// linear_wgrad_accumulate on the CPU.
#include "anyop/ops/linear_wgrad_accumulate.h"

#include "added_sums.h"

extern "C" int32_t anyop_linear_wgrad_accumulate_cpu(const LinearWgradAccumulateArgs* args,
                                                     AnyopCall* call) {
  using namespace anyop;
  const GemmProblem problem = GradientOfWeight(AnyopDtypeOf(args->x), args->rows, args->N, args->K,
                                               args->grad_out->data, args->x->data, nullptr);
  return cpu::AddProduct(call, problem, args->grad_weight, 0);
}
