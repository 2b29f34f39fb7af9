// SPDX-License-Identifier: Apache-2.0
// Gradient of gelu on the CPU: two reads and one write an element, computed in float32 (float64 for
// float64).
#include "anyop/ops/gelu_backward.h"

#include "anyop/cpu/map.h"
#include "gelu_forms.h"

namespace anyop::cpu {
namespace {

ANYOP_CPU_CLONES void RunErf(const Plan<2>& plan, int64_t begin, int64_t end) {
  MapFloats(plan, begin, end, [](auto g, auto x) { return g * GeluErf::Slope(x); });
}

ANYOP_CPU_CLONES void RunTanh(const Plan<2>& plan, int64_t begin, int64_t end) {
  MapFloats(plan, begin, end, [](auto g, auto x) { return g * GeluTanh::Slope(x); });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_gelu_backward_cpu(const GeluBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  const Plan<2> plan(args->grad_x, {args->grad_out, args->x});
  return WithGelu(
      call, args->approximate.data, [&] { return RunMap(call, plan, RunErf); },
      [&] { return RunMap(call, plan, RunTanh); });
}
