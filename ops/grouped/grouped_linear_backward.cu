// SPDX-License-Identifier: Apache-2.0
// grouped_linear_backward from Ampere on, in float16 and bfloat16.
#include "anyop/ops/grouped_linear_backward.h"
#include "grouped_backward_mma.h"

namespace {

using namespace anyop::cuda;

bool AreAligned(const void* a, const void* b, int64_t N, int64_t K) {
  return N % 8 == 0 && K % 8 == 0 && IsAligned(a, 16) && IsAligned(b, 16);
}

template <Operand kType, typename T>
int32_t Run(const GroupedLinearBackwardArgs* args, AnyopCall* call) {
  const void *grad_out = args->grad_out->data, *x = args->x->data, *weight = args->weight->data;
  TileProblem p = {};
  p.x = grad_out, p.offsets = args->offsets->data, p.result = AnyopDtypeOf(args->grad_out);
  p.rows = static_cast<int>(args->T), p.experts = static_cast<int>(args->E);
  p.capacity = static_cast<int>(args->N);
  if (args->grad_x && args->T && args->K) {
    TileProblem of_x = p;
    of_x.weight = weight, of_x.out = args->grad_x->data;
    of_x.N = static_cast<int>(args->K), of_x.K = static_cast<int>(args->N);
    const int64_t tiles = (CeilDiv(args->T, 128) + args->E) * CeilDiv(args->K, 128);
    if (int32_t status =
            args->E == 0 ? ZeroAll(call, of_x)
                         : RunBackward<MultiplyBackward<kType, false>>(
                               call, tiles, of_x, AreAligned(grad_out, weight, args->N, args->K)))
      return status;
  }
  if (args->E == 0 || args->N == 0) return kAnyopOk;
  if (args->grad_weight && args->K) {
    TileProblem of_weight = p;
    of_weight.weight = x, of_weight.out = args->grad_weight->data;
    of_weight.N = static_cast<int>(args->K);
    const int64_t tiles = args->E * CeilDiv(args->N, 128) * CeilDiv(args->K, 128);
    if (int32_t status = RunBackward<MultiplyBackward<kType, true>>(
            call, tiles, of_weight, AreAligned(grad_out, x, args->N, args->K)))
      return status;
  }
  if (!args->grad_bias) return kAnyopOk;
  p.out = args->grad_bias->data;
  const Launch launch{dim3(static_cast<unsigned>(CeilDiv(args->N, 32)),
                           static_cast<unsigned>(args->E < 65535 ? args->E : 65535)),
                      dim3(256)};
  return launch.Run(call, SumSegments<T>, p);
}

}  // namespace

extern "C" int32_t anyop_grouped_linear_backward_cuda(const GroupedLinearBackwardArgs* args,
                                                      AnyopCall* call) {
  if (int32_t status = CheckCounts(call, args->T, args->E * args->N, args->E * args->K))
    return status;
  return AnyopDtypeOf(args->grad_out) == kAnyopFloat16
             ? Run<Operand::kFloat16, __half>(args, call)
             : Run<Operand::kBFloat16, __nv_bfloat16>(args, call);
}
