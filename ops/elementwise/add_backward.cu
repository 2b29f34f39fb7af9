// SPDX-License-Identifier: Apache-2.0
// Gradients of add on CUDA: grad_out, or alpha times it, copied or summed over what was broadcast:
// both in one pass where one is copied and the other summed. Who does what: map_sum_cuda.h.
#include "anyop/ops/add_backward.h"
#include "map_sum_cuda.h"

namespace anyop::cuda {
namespace {

struct Scaled {
  double factor;
  __device__ float operator()(float g) const { return static_cast<float>(factor) * g; }
  __device__ double operator()(double g) const { return factor * g; }
  // What is summed is scaled behind the sum.
  template <typename W>
  __device__ W operator()(const W (&in)[1], W& written) const {
    written = (*this)(in[0]);
    return in[0];
  }
};

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_add_backward_cuda(const AddBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  const AnyopTensor* grad = args->grad_out;
  const AnyopTensor* const results[] = {args->grad_x, args->grad_y};
  const double factors[] = {1, args->alpha};
  for (int i = 0; i < 2; ++i) {  // those that are not summed, with the other one where that is
    const AnyopTensor *result = results[i], *other = results[1 - i];
    if (!result || IsSummed(grad, result)) continue;
    const AnyopTensor out = anyop::ShapedAs(result, grad);
    const Scaled scaled = {factors[i]};
    if (other && IsSummed(grad, other))
      return RunMapSum(call, scaled, {grad}, &out, factors[1 - i], other);
    if (int32_t status = RunGradientMap(call, scaled, {grad}, &out)) return status;
  }
  for (int i = 0; i < 2; ++i) {
    if (!results[i] || !IsSummed(grad, results[i])) continue;
    if (int32_t status = RunMapSum(call, Scaled{1}, {grad}, nullptr, factors[i], results[i]))
      return status;
  }
  return kAnyopOk;
}
