// SPDX-License-Identifier: Apache-2.0
// Gradients of add on the CPU: grad_out, or alpha times it, copied or summed over what was
// broadcast, in float32 (float64 for float64).
#include "anyop/ops/add_backward.h"

#include "sum_to.h"

namespace anyop::cpu {
namespace {

struct Scaled {
  double factor;
  template <typename Wide>
  Wide operator()(const Wide& g) const {
    return static_cast<float>(factor) * g;
  }
  double operator()(double g) const { return factor * g; }
};

ANYOP_CPU_CLONES void Run(const Plan<1>& plan, Scaled scaled, int64_t begin, int64_t end) {
  MapFloatNumbers(plan, begin, end, scaled);
}

int32_t Gradient(AnyopCall* call, const AnyopTensor* grad, double factor,
                 const AnyopTensor* result) {
  const SumTo sum(grad, nullptr, factor, result);
  if (sum.is_sum) return RunSum(call, sum);
  const AnyopTensor out = ShapedAs(result, grad);
  return RunMap(
      call, Plan<1>(&out, {grad}),
      [factor](const auto& plan, int64_t begin, int64_t end) { Run(plan, {factor}, begin, end); });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_add_backward_cpu(const AddBackwardArgs* args, AnyopCall* call) {
  using anyop::cpu::Gradient;
  int32_t status = kAnyopOk;
  if (args->grad_x) status = Gradient(call, args->grad_out, 1, args->grad_x);
  if (status == kAnyopOk && args->grad_y) {
    status = Gradient(call, args->grad_out, args->alpha, args->grad_y);
  }
  return status;
}
