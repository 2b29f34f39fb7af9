// SPDX-License-Identifier: Apache-2.0
// grouped_linear and grouped_linear_masked on the CPU: one product for each expert that has rows,
// which gemm.cc divides over the threads.
#include "anyop/ops/grouped_linear.h"

#include "../linear/gemm_blocks.h"
#include "../linear/reused_workspace.h"
#include "anyop/ops/grouped_linear_masked.h"
#include "segments.h"

namespace anyop {
namespace {

// Multiplies rows [begin, end) by the weight of one expert.
template <typename Args>
int32_t RunExpert(const Args* args, AnyopCall* call, const AnyopTensor* bias, int64_t e,
                  int64_t begin, int64_t end) {
  const int64_t N = args->N, K = args->K;
  GemmProblem problem =
      RowsByRows(AnyopDtypeOf(args->out), end - begin, N, K, ElementOf(args->x, begin * K),
                 ElementOf(args->weight, e * N * K));
  if (bias) problem.bias = ElementOf(bias, e * N);
  problem.out = ElementOf(args->out, begin * N);
  return Gemm(call, problem);
}

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_grouped_linear_cpu(const GroupedLinearArgs* args, AnyopCall* call) {
  using namespace anyop;
  ReusedWorkspace scratch(call);
  const auto run = [&](int64_t e, int64_t begin, int64_t end) {
    return RunExpert(args, scratch.Next(), args->bias, e, begin, end);
  };
  return ForSegments(args->offsets, args->E, args->T, run, Rest(call, args->out, args->N));
}

extern "C" int32_t anyop_grouped_linear_masked_cpu(const GroupedLinearMaskedArgs* args,
                                                   AnyopCall* call) {
  using namespace anyop;
  ReusedWorkspace scratch(call);
  const auto run = [&](int64_t e, int64_t begin, int64_t end) {
    return RunExpert(args, scratch.Next(), nullptr, e, begin, end);
  };
  return ForCounts(args->counts, args->E, args->C, run, Rest(call, args->out, args->N));
}
