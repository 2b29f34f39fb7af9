// SPDX-License-Identifier: Apache-2.0
// Gradient of layer_norm on CUDA: see norm_gradient_rows.h.
#include "anyop/ops/layer_norm_backward.h"
#include "norm_gradient_rows.h"

extern "C" int32_t anyop_layer_norm_backward_cuda(const LayerNormBackwardArgs* args,
                                                  AnyopCall* call) {
  const anyop::cuda::GradientCall c = {
      call,      args->rows,         args->D,      args->grad_out,    args->x,
      nullptr,   args->weight,       args->grad_x, args->grad_weight, args->grad_bias,
      args->eps, args->weight_offset};
  return anyop::cuda::RunGradient<true, false>(c);
}
