// SPDX-License-Identifier: Apache-2.0
// Gradient of silu on the CPU: two reads and one write an element, computed in float32 (float64 for
// float64).
#include "anyop/ops/silu_backward.h"

#include "anyop/cpu/map.h"
#include "anyop/cpu/math.h"

namespace anyop::cpu {
namespace {

ANYOP_CPU_CLONES void Run(const Plan<2>& plan, int64_t begin, int64_t end) {
  MapFloats(plan, begin, end, [](auto g, auto x) { return g * SiluSlope(x); });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_silu_backward_cpu(const SiluBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  return RunMap(call, Plan<2>(args->grad_x, {args->grad_out, args->x}), Run);
}
