// SPDX-License-Identifier: Apache-2.0
// Gradient of gelu_and_mul on CUDA: both halves of a row and their gradient are read once.
#include "activations_cuda.h"
#include "anyop/ops/gelu_and_mul_backward.h"

extern "C" int32_t anyop_gelu_and_mul_backward_cuda(const GeluAndMulBackwardArgs* args,
                                                    AnyopCall* call) {
  using namespace anyop::cuda;
  return WithGelu(call, args->approximate.data, [&](auto form) {
    using Form = decltype(form);
    return RunTimesGradient<Form>(call, args->grad_out, args->x, args->grad_x);
  });
}
