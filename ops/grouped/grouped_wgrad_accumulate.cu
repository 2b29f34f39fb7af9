// SPDX-License-Identifier: Apache-2.0
// grouped_wgrad_accumulate from Ampere on, in float16 and bfloat16.
#include "accumulated_problem.h"
#include "grouped_backward_mma.h"

namespace {

using namespace anyop::cuda;

template <Operand kType>
int32_t Run(AnyopCall* call, const TileProblem& p) {
  const int64_t tiles = p.experts * CeilDiv(p.capacity, 128) * CeilDiv(p.N, 128);
  const bool aligned =
      p.N % 8 == 0 && p.capacity % 8 == 0 && IsAligned(p.x, 16) && IsAligned(p.weight, 16);
  return RunBackward<MultiplyBackward<kType, true, true>>(call, tiles, p, aligned);
}

}  // namespace

extern "C" int32_t anyop_grouped_wgrad_accumulate_cuda(const GroupedWgradAccumulateArgs* args,
                                                       AnyopCall* call) {
  TileProblem p;
  if (int32_t status = AccumulatedProblem(call, args, &p)) return status;
  if (p.rows == 0 || p.experts == 0 || p.capacity == 0 || p.N == 0) return kAnyopOk;
  return AnyopDtypeOf(args->x) == kAnyopFloat16 ? Run<Operand::kFloat16>(call, p)
                                                : Run<Operand::kBFloat16>(call, p);
}
