// SPDX-License-Identifier: Apache-2.0
// Gradient of fused_add_layer_norm on CUDA: see norm_gradient_rows.h.
#include "anyop/ops/fused_add_layer_norm_backward.h"
#include "norm_gradient_rows.h"

extern "C" int32_t anyop_fused_add_layer_norm_backward_cuda(
    const FusedAddLayerNormBackwardArgs* args, AnyopCall* call) {
  const anyop::cuda::GradientCall c = {
      call,           args->rows,         args->D,      args->grad_out,    args->sum,
      args->grad_sum, args->weight,       args->grad_x, args->grad_weight, args->grad_bias,
      args->eps,      args->weight_offset};
  if (!c.added || !c.grad_out) return anyop::cuda::RunLayerNormGradient(c);
  return anyop::cuda::RunGradient<true, 3>(c);
}
