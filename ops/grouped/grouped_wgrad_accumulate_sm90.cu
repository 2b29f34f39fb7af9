// SPDX-License-Identifier: Apache-2.0
// grouped_wgrad_accumulate on Hopper, in float16 and bfloat16.
#include "accumulated_problem.h"
#include "grouped_backward_sm90.h"

extern "C" int32_t anyop_grouped_wgrad_accumulate_cuda_sm90(const GroupedWgradAccumulateArgs* args,
                                                            AnyopCall* call) {
  using namespace anyop::cuda;
  TileProblem p;
  if (int32_t status = AccumulatedProblem(call, args, &p)) return status;
  if (p.rows == 0 || p.experts == 0 || p.capacity == 0 || p.N == 0) return kAnyopOk;
  return AnyopDtypeOf(args->x) == kAnyopFloat16
             ? RunGradient<Operand::kFloat16, true, true, true>(call, p)
             : RunGradient<Operand::kBFloat16, true, true, true>(call, p);
}
