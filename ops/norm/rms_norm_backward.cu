// SPDX-License-Identifier: Apache-2.0
// Gradient of rms_norm on CUDA: see norm_gradient_rows.h.
#include "anyop/ops/rms_norm_backward.h"
#include "norm_gradient_rows.h"

namespace anyop::cuda {

int32_t RunRmsNormGradient(const GradientCall& c) { return RunGradient<false, 2>(c); }

}  // namespace anyop::cuda

extern "C" int32_t anyop_rms_norm_backward_cuda(const RmsNormBackwardArgs* args, AnyopCall* call) {
  const anyop::cuda::GradientCall c = {call,           args->rows,   args->D,
                                       args->grad_out, args->x,      nullptr,
                                       args->weight,   args->grad_x, args->grad_weight,
                                       nullptr,        args->eps,    args->weight_offset};
  return anyop::cuda::RunRmsNormGradient(c);
}
