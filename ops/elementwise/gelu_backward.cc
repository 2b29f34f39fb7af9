// SPDX-License-Identifier: Apache-2.0
// Gradient of gelu on the CPU: two reads and one write an element, computed in float32 (float64 for
// float64).
#include "anyop/ops/gelu_backward.h"

#include "anyop/cpu_map.h"
#include "anyop/cpu_math.h"

namespace anyop::cpu {
namespace {

// x times the normal density at x, which is 0 long before 40.
template <typename Wide>
inline Wide DensityMoment(Wide x) {
  const Wide v = Min(Max(x, Wide{-40}), Wide{40});
  const Wide exponent = v * v * static_cast<Wide>(-0.72134752044448170);  // log2(e) / 2
  return v * Exp2Negative(exponent) * static_cast<Wide>(0.39894228040143268);
}

ANYOP_CPU_CLONES void RunErf(const Plan<2>& plan, int64_t begin, int64_t end) {
  MapFloats(plan, begin, end, [](auto g, auto x) { return g * (NormalCdf(x) + DensityMoment(x)); });
}

// x Sigmoid(v) with v = a (x + b x^3); where the sigmoid's slope is 0, x is no longer needed.
ANYOP_CPU_CLONES void RunTanh(const Plan<2>& plan, int64_t begin, int64_t end) {
  MapFloats(plan, begin, end, [](auto g, auto x) {
    using Wide = decltype(x);
    constexpr Wide a = static_cast<Wide>(1.5957691216057308), b = static_cast<Wide>(0.044715);
    const auto s = SigmoidWithSlope(a * x * (1 + b * x * x));
    const Wide v = Min(Max(x, Wide{-40}), Wide{40});
    return g * (s.value + s.slope * (a * v * (1 + 3 * b * v * v)));
  });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_gelu_backward_cpu(const GeluBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  const Plan<2> plan(args->grad_x, {args->grad_out, args->x});
  if (__builtin_strcmp(args->approximate.data, "none") == 0) return RunMap(call, plan, RunErf);
  if (__builtin_strcmp(args->approximate.data, "tanh") == 0) return RunMap(call, plan, RunTanh);
  return call->fail(call, kAnyopValueError, "approximate is unknown, expected 'none' or 'tanh'");
}
