// SPDX-License-Identifier: Apache-2.0
// gelu on the CPU: one read and one write an element, computed in float32 (float64 for float64).
#include "anyop/ops/gelu.h"

#include "anyop/cpu_map.h"
#include "anyop/cpu_math.h"

namespace anyop::cpu {
namespace {

ANYOP_CPU_CLONES void RunErf(const Plan<1>& plan, int64_t begin, int64_t end) {
  MapFloats(plan, begin, end, [](auto x) { return x * NormalCdf(x); });
}

// (1 + tanh(u)) / 2 = 1 / (1 + e^-2u), which does not cancel where x is far below 0.
ANYOP_CPU_CLONES void RunTanh(const Plan<1>& plan, int64_t begin, int64_t end) {
  MapFloats(plan, begin, end, [](auto x) {
    using Wide = decltype(x);
    const Wide cubic = 1 + static_cast<Wide>(0.044715) * x * x;
    return x * Sigmoid(static_cast<Wide>(1.5957691216057308) * x * cubic);
  });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_gelu_cpu(const GeluArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  const Plan<1> plan(args->out, {args->x});
  if (__builtin_strcmp(args->approximate.data, "none") == 0) return RunMap(call, plan, RunErf);
  if (__builtin_strcmp(args->approximate.data, "tanh") == 0) return RunMap(call, plan, RunTanh);
  return call->fail(call, kAnyopValueError, "approximate is unknown, expected 'none' or 'tanh'");
}
