// SPDX-License-Identifier: Apache-2.0
// Gradient of log_softmax on CUDA: see over_dim_rows.h.
#include "anyop/ops/log_softmax_backward.h"
#include "over_dim_rows.h"

extern "C" int32_t anyop_log_softmax_backward_cuda(const LogSoftmaxBackwardArgs* args,
                                                   AnyopCall* call) {
  return anyop::cuda::RunSoftmaxGradient<true>(args, call);
}
