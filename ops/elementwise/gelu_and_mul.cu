// SPDX-License-Identifier: Apache-2.0
// gelu_and_mul on CUDA: both halves of a row are read once, in float32 (float64).
#include "activations_cuda.h"
#include "anyop/ops/gelu_and_mul.h"

extern "C" int32_t anyop_gelu_and_mul_cuda(const GeluAndMulArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return WithGelu(call, args->approximate.data, [&](auto form) {
    using Form = decltype(form);
    return RunTimes<Form>(call, args->x, args->out);
  });
}
