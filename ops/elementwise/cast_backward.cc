// SPDX-License-Identifier: Apache-2.0
// Gradient of cast on the CPU: grad_out as the dtype of x.
#include "anyop/ops/cast_backward.h"

#include "anyop/cpu_map.h"

namespace anyop::cpu {
namespace {

ANYOP_CPU_CLONES void Run(const Plan<1>& plan, int64_t begin, int64_t end) {
  MapFloatNumbers(plan, begin, end, [](const auto& g) { return g; });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_cast_backward_cpu(const CastBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  return RunMap(call, Plan<1>(args->grad_x, {args->grad_out}), Run);
}
