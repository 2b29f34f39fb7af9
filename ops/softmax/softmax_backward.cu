// SPDX-License-Identifier: Apache-2.0
// Gradient of softmax on CUDA: see over_dim_rows.h.
#include "anyop/ops/softmax_backward.h"
#include "over_dim_rows.h"

extern "C" int32_t anyop_softmax_backward_cuda(const SoftmaxBackwardArgs* args, AnyopCall* call) {
  return anyop::cuda::RunSoftmaxGradient<false>(args, call);
}
