// SPDX-License-Identifier: Apache-2.0
// Gradient of scaled_softmax and scaled_masked_softmax on CUDA: see scaled_softmax_rows.h.
#include "anyop/ops/scaled_softmax_backward.h"
#include "scaled_softmax_rows.h"

extern "C" int32_t anyop_scaled_softmax_backward_cuda(const ScaledSoftmaxBackwardArgs* args,
                                                      AnyopCall* call) {
  using namespace anyop::cuda;
  return RunScaledSoftmaxGradient<LeaveOut::kNothing>(call, {args->rows, args->D}, args->grad_out,
                                                      args->out, args->scale, args->grad_x);
}
