// SPDX-License-Identifier: Apache-2.0
// silu on the CPU: one read and one write an element, computed in float32 (float64 for float64).
#include "anyop/ops/silu.h"

#include "anyop/cpu/map.h"
#include "anyop/cpu/math.h"

namespace anyop::cpu {
namespace {

ANYOP_CPU_CLONES void Run(const Plan<1>& plan, int64_t begin, int64_t end) {
  MapFloats(plan, begin, end, [](auto x) { return x * Sigmoid(x); });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_silu_cpu(const SiluArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  return RunMap(call, Plan<1>(args->out, {args->x}), Run);
}
