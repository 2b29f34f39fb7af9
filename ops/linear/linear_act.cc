// SPDX-License-Identifier: Apache-2.0
// linear_act and native_linear_act on the CPU: see finished_sums.h.
#include "anyop/ops/linear_act.h"

#include "anyop/ops/native_linear_act.h"
#include "finished_sums.h"

namespace anyop::cpu {
namespace {

template <typename Args>
int32_t RunLinear(const Args* args, AnyopCall* call, const AnyopTensor* pre) {
  FinishedSums work = {args->residual, args->out, pre, args->N, Activation::kNone};
  if (const int32_t status = ReadActivation(call, args->activation.data, &work.activation))
    return status;
  GemmProblem problem = RowsByRows(AnyopDtypeOf(args->out), args->rows, args->N, args->K,
                                   args->x->data, args->weight->data);
  problem.bias = args->bias ? args->bias->data : nullptr;
  return FinishedProduct(call, problem, work);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_linear_act_cpu(const LinearActArgs* args, AnyopCall* call) {
  return anyop::cpu::RunLinear(args, call, nullptr);
}
extern "C" int32_t anyop_native_linear_act_cpu(const NativeLinearActArgs* args, AnyopCall* call) {
  return anyop::cpu::RunLinear(args, call, args->pre);
}
