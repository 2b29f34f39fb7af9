// SPDX-License-Identifier: Apache-2.0
// Gradient of gelu on CUDA: two reads and one write an element, in float32 (float64).
#include "activations_cuda.h"
#include "anyop/ops/gelu_backward.h"

extern "C" int32_t anyop_gelu_backward_cuda(const GeluBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return WithGelu(call, args->approximate.data, [&](auto form) {
    using Form = decltype(form);
    return RunFloatMap(call, GradientOf<Form>(), {args->grad_out, args->x}, args->grad_x);
  });
}
