// SPDX-License-Identifier: Apache-2.0
// grouped_linear_backward from Ampere on, in float16 and bfloat16.
#include "grouped_backward_mma.h"
#include "grouped_gradients.h"

namespace {

using namespace anyop::cuda;

bool AreAligned(const TileProblem& p) {
  return p.N % 8 == 0 && p.capacity % 8 == 0 && IsAligned(p.x, 16) && IsAligned(p.weight, 16);
}

template <Operand kType, typename T>
int32_t Run(const GroupedLinearBackwardArgs* args, AnyopCall* call) {
  const auto of_x = [&](const TileProblem& p) {
    const int64_t tiles = (CeilDiv(args->T, 128) + args->E) * CeilDiv(args->K, 128);
    return RunBackward<MultiplyBackward<kType, false>>(call, tiles, p, AreAligned(p));
  };
  const auto of_weight = [&](const TileProblem& p) {
    const int64_t tiles = args->E * CeilDiv(args->N, 128) * CeilDiv(args->K, 128);
    return RunBackward<MultiplyBackward<kType, true>>(call, tiles, p, AreAligned(p));
  };
  return RunGradients<T>(args, call, of_x, of_weight);
}

}  // namespace

extern "C" int32_t anyop_grouped_linear_backward_cuda(const GroupedLinearBackwardArgs* args,
                                                      AnyopCall* call) {
  return AnyopDtypeOf(args->grad_out) == kAnyopFloat16
             ? Run<Operand::kFloat16, __half>(args, call)
             : Run<Operand::kBFloat16, __nv_bfloat16>(args, call);
}
