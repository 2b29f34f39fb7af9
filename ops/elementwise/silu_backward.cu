// SPDX-License-Identifier: Apache-2.0
// Gradient of silu on CUDA: two reads and one write an element, in float32 (float64).
#include "activations_cuda.h"
#include "anyop/ops/silu_backward.h"

extern "C" int32_t anyop_silu_backward_cuda(const SiluBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return RunFloatMap(call, GradientOf<SiluForm>(), {args->grad_out, args->x}, args->grad_x);
}
