// SPDX-License-Identifier: Apache-2.0
// Gradient of silu_and_mul on CUDA: both halves of a row and their gradient are read once.
#include "activations_cuda.h"
#include "anyop/ops/silu_and_mul_backward.h"

extern "C" int32_t anyop_silu_and_mul_backward_cuda(const SiluAndMulBackwardArgs* args,
                                                    AnyopCall* call) {
  using namespace anyop::cuda;
  return RunTimesGradient<SiluForm>(call, args->grad_out, args->x, args->grad_x);
}
