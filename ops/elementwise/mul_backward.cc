// SPDX-License-Identifier: Apache-2.0
// Gradients of mul on the CPU: grad_out times the other factor, summed over what was broadcast, in
// float32 (float64 for float64).
#include "anyop/ops/mul_backward.h"

#include "sum_to.h"

namespace anyop::cpu {
namespace {

ANYOP_CPU_CLONES void Run(const Plan<2>& plan, int64_t begin, int64_t end) {
  using Floats = Types<float16, bfloat16, float>;
  const auto product = [](const auto& g, const auto& f) { return g * f; };
  if (plan.in[0].dtype == kAnyopFloat64 && plan.out.dtype != kAnyopFloat64) {
    return Map<kLight, double, Floats, Floats>(plan, begin, end, product);
  }
  MapFloatNumbers(plan, begin, end, product);
}

int32_t Gradient(AnyopCall* call, const AnyopTensor* grad, const AnyopTensor* factor,
                 const AnyopTensor* result) {
  const SumTo sum(grad, factor, 1, result);
  if (sum.is_sum) return RunSum(call, sum);
  const AnyopTensor out = ShapedAs(result, grad);
  return RunMap(call, Plan<2>(&out, {grad, factor}), Run);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_mul_backward_cpu(const MulBackwardArgs* args, AnyopCall* call) {
  using anyop::cpu::Gradient;
  int32_t status = kAnyopOk;
  if (args->grad_x) status = Gradient(call, args->grad_out, args->y, args->grad_x);
  if (status == kAnyopOk && args->grad_y) {
    status = Gradient(call, args->grad_out, args->x, args->grad_y);
  }
  return status;
}
