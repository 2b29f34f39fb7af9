// SPDX-License-Identifier: Apache-2.0
// gelu on CUDA: one read and one write an element, in float32 (float64).
#include "activations_cuda.h"
#include "anyop/ops/gelu.h"

extern "C" int32_t anyop_gelu_cuda(const GeluArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return WithGelu(call, args->approximate.data, [&](auto form) {
    using Form = decltype(form);
    return RunFloatMap(call, ValueOf<Form>(), {args->x}, args->out);
  });
}
