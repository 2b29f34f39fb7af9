// SPDX-License-Identifier: Apache-2.0
// grouped_linear_backward on Hopper, in float16 and bfloat16.
#include "grouped_backward_sm90.h"
#include "grouped_gradients.h"

namespace {

using namespace anyop::cuda;

template <Operand kType, typename T>
int32_t Run(const GroupedLinearBackwardArgs* args, AnyopCall* call) {
  return RunGradients<T>(
      args, call, [&](const TileProblem& p) { return RunGradientOfRows<kType>(call, p); },
      [&](const TileProblem& p) { return RunGradient<kType, true>(call, p); });
}

}  // namespace

extern "C" int32_t anyop_grouped_linear_backward_cuda_sm90(const GroupedLinearBackwardArgs* args,
                                                           AnyopCall* call) {
  return AnyopDtypeOf(args->grad_out) == kAnyopFloat16
             ? Run<Operand::kFloat16, __half>(args, call)
             : Run<Operand::kBFloat16, __nv_bfloat16>(args, call);
}
