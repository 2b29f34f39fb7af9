// SPDX-License-Identifier: Apache-2.0
// Gradients of grouped_linear on the CPU: two products and the sums of the columns for each expert;
// those of an expert without rows are 0.
#include "anyop/ops/grouped_linear_backward.h"

#include "../linear/activation_slope.h"
#include "../linear/gemm_blocks.h"
#include "../linear/reused_workspace.h"
#include "segments.h"

namespace anyop {
namespace {

int32_t SumRows(const GroupedLinearBackwardArgs* args, AnyopCall* call, int64_t e, int64_t begin,
                int64_t rows) {
  AnyopTensor bias = *args->grad_bias;
  bias.data = ElementOf(&bias, e * args->N);
  cpu::SlopeWork sum = {};
  sum.grad = ElementOf(args->grad_out, begin * args->N);
  sum.grad_dtype = sum.dtype = AnyopDtypeOf(args->grad_out);
  sum.bias = &bias;
  sum.rows = rows, sum.N = args->N;
  return cpu::ActivationSlope(call, sum);
}

int32_t RunExpert(const GroupedLinearBackwardArgs* args, ReusedWorkspace& scratch, int64_t e,
                  int64_t begin, int64_t end) {
  const AnyopDtype dtype = AnyopDtypeOf(args->grad_out);
  const int64_t M = end - begin, N = args->N, K = args->K;
  const void* grad = ElementOf(args->grad_out, begin * N);
  int32_t status = args->grad_bias ? SumRows(args, scratch.Next(), e, begin, M) : kAnyopOk;
  if (status == kAnyopOk && args->grad_x)
    status = Gemm(scratch.Next(),
                  GradientOfRows(dtype, M, N, K, grad, ElementOf(args->weight, e * N * K),
                                 ElementOf(args->grad_x, begin * K)));
  if (status == kAnyopOk && args->grad_weight)
    status =
        Gemm(scratch.Next(), GradientOfWeight(dtype, M, N, K, grad, ElementOf(args->x, begin * K),
                                              ElementOf(args->grad_weight, e * N * K)));
  return status;
}

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_grouped_linear_backward_cpu(const GroupedLinearBackwardArgs* args,
                                                     AnyopCall* call) {
  using namespace anyop;
  ReusedWorkspace scratch(call);
  const auto run = [&](int64_t e, int64_t begin, int64_t end) {
    return RunExpert(args, scratch, e, begin, end);
  };
  return ForSegments(args->offsets, args->E, args->T, run, Rest(call, args->grad_x, args->K));
}
