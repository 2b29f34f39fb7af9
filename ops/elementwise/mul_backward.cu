// SPDX-License-Identifier: Apache-2.0
// Gradients of mul on CUDA: grad_out times the other factor, summed over what was broadcast: both
// in one pass where one is not summed. Who does what: map_sum_cuda.h.
#include "anyop/ops/mul_backward.h"
#include "map_sum_cuda.h"

namespace anyop::cuda {
namespace {

// Of grad_out, the factor of what is written and the factor of what is summed.
struct Products {
  template <typename W>
  __device__ W operator()(W g, W factor) const {
    return g * factor;
  }
  template <typename W>
  __device__ W operator()(const W (&in)[3], W& written) const {
    written = in[0] * in[1];
    return in[0] * in[2];
  }
};

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_mul_backward_cuda(const MulBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  const AnyopTensor* grad = args->grad_out;
  const AnyopTensor* const results[] = {args->grad_x, args->grad_y};
  const AnyopTensor* const factors[] = {args->y, args->x};
  for (int i = 0; i < 2; ++i) {  // those that are not summed, with the other one where that is
    const AnyopTensor *result = results[i], *other = results[1 - i];
    if (!result || IsSummed(grad, result)) continue;
    const AnyopTensor out = anyop::ShapedAs(result, grad);
    if (other && IsSummed(grad, other))
      return RunMapSum(call, Products(), {grad, factors[i], factors[1 - i]}, &out, 1, other);
    if (int32_t status = RunGradientMap(call, Products(), {grad, factors[i]}, &out)) return status;
  }
  for (int i = 0; i < 2; ++i) {
    if (!results[i] || !IsSummed(grad, results[i])) continue;
    if (int32_t status =
            RunMapSum(call, Products(), {grad, factors[i], factors[i]}, nullptr, 1, results[i]))
      return status;
  }
  return kAnyopOk;
}
