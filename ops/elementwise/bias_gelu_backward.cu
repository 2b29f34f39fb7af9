// SPDX-License-Identifier: Apache-2.0
// Gradient of bias_gelu on CUDA: x and grad_out are read once; the sum of the bias is made in the
// same pass, of what is not rounded yet. Who does what: map_sum_cuda.h.
#include "activations_cuda.h"
#include "anyop/ops/bias_gelu_backward.h"
#include "map_sum_cuda.h"

namespace anyop::cuda {
namespace {

template <typename Form>
struct SlopeOfSum {
  template <typename W>
  __device__ W operator()(const W (&in)[3], W& written) const {
    return written = in[0] * Form::Slope(in[1] + in[2]);
  }
};

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_bias_gelu_backward_cuda(const BiasGeluBackwardArgs* args,
                                                 AnyopCall* call) {
  using namespace anyop::cuda;
  const RepeatedRow bias(args->bias, args->x);
  AnyopTensor none = *args->bias;
  none.data = nullptr;
  const AnyopTensor* sum = args->grad_bias ? args->grad_bias : &none;
  return WithGelu(call, args->approximate.data, [&](auto form) {
    using Form = decltype(form);
    return RunMapSum(call, SlopeOfSum<Form>(), {args->grad_out, args->x, &bias.tensor},
                     args->grad_x, 1, sum);
  });
}
