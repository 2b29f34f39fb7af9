// SPDX-License-Identifier: Apache-2.0
// grouped_wgrad_accumulate on the CPU: one product for each expert that has rows.
#include "anyop/ops/grouped_wgrad_accumulate.h"

#include "../linear/added_sums.h"
#include "../linear/reused_workspace.h"
#include "segments.h"

extern "C" int32_t anyop_grouped_wgrad_accumulate_cpu(const GroupedWgradAccumulateArgs* args,
                                                      AnyopCall* call) {
  using namespace anyop;
  ReusedWorkspace scratch(call);
  const auto run = [&](int64_t e, int64_t begin, int64_t end) {
    if (begin == end) return int32_t{kAnyopOk};
    const GemmProblem problem = GradientOfWeight(
        AnyopDtypeOf(args->x), end - begin, args->N, args->K,
        ElementOf(args->grad_out, begin * args->N), ElementOf(args->x, begin * args->K), nullptr);
    return cpu::AddProduct(scratch.Next(), problem, args->grad_weight, e * args->N);
  };
  return ForSegments(args->offsets, args->E, args->T, run, [](int64_t, int64_t) {});
}
