// SPDX-License-Identifier: Apache-2.0
// bias_gelu on CUDA: one read and one write an element, in float32 (float64).
#include "activations_cuda.h"
#include "anyop/ops/bias_gelu.h"

namespace anyop::cuda {
namespace {

template <typename Form>
struct ValueOfSum {
  template <typename W>
  __device__ W operator()(W x, W bias) const {
    return Form::Value(x + bias);
  }
};

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_bias_gelu_cuda(const BiasGeluArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  const RepeatedRow bias(args->bias, args->x);
  return WithGelu(call, args->approximate.data, [&](auto form) {
    using Form = decltype(form);
    return RunFloatMap(call, ValueOfSum<Form>(), {args->x, &bias.tensor}, args->out);
  });
}
