// SPDX-License-Identifier: Apache-2.0
// Gradient of scaled_upper_triang_masked_softmax on CUDA: see scaled_softmax_rows.h.
#include "anyop/ops/scaled_upper_triang_masked_softmax_backward.h"
#include "scaled_softmax_rows.h"

extern "C" int32_t anyop_scaled_upper_triang_masked_softmax_backward_cuda(
    const ScaledUpperTriangMaskedSoftmaxBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return RunScaledSoftmaxGradient<LeaveOut::kAboveDiagonal>(
      call, {args->rows * args->S, args->S}, args->grad_out, args->out, args->scale, args->grad_x);
}
