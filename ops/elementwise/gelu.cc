// SPDX-License-Identifier: Apache-2.0
// gelu on the CPU: one read and one write an element, computed in float32 (float64 for float64).
#include "anyop/ops/gelu.h"

#include "anyop/cpu/map.h"
#include "gelu_forms.h"

namespace anyop::cpu {
namespace {

ANYOP_CPU_CLONES void RunErf(const Plan<1>& plan, int64_t begin, int64_t end) {
  MapFloats(plan, begin, end, [](auto x) { return GeluErf::Value(x); });
}

ANYOP_CPU_CLONES void RunTanh(const Plan<1>& plan, int64_t begin, int64_t end) {
  MapFloats(plan, begin, end, [](auto x) { return GeluTanh::Value(x); });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_gelu_cpu(const GeluArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  const Plan<1> plan(args->out, {args->x});
  return WithGelu(
      call, args->approximate.data, [&] { return RunMap(call, plan, RunErf); },
      [&] { return RunMap(call, plan, RunTanh); });
}
