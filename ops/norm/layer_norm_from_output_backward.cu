// SPDX-License-Identifier: Apache-2.0
// Gradient of layer_norm_from_output on CUDA: see norm_from_output_rows.h.
#include "anyop/ops/layer_norm_from_output_backward.h"
#include "norm_from_output_rows.h"

extern "C" int32_t anyop_layer_norm_from_output_backward_cuda(
    const LayerNormFromOutputBackwardArgs* args, AnyopCall* call) {
  return anyop::cuda::RunFromOutput<true>(args, call, args->bias, args->grad_bias);
}
