// SPDX-License-Identifier: Apache-2.0
// relu on the CPU: one read and one write an element; exact.
#include "anyop/ops/relu.h"

#include "anyop/cpu/map.h"

namespace anyop::cpu {
namespace {

// Of float, vectors of float, or double.
struct Relu {
  template <typename Wide>
  Wide operator()(const Wide& x) const {
    return x < 0 ? Wide{} : x;
  }
};

ANYOP_CPU_CLONES void Run(const Plan<1>& plan, int64_t begin, int64_t end) {
  if (!MapFloat16(plan, begin, end, Relu())) MapFloats<kLight>(plan, begin, end, Relu());
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_relu_cpu(const ReluArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  return RunMap(call, Plan<1>(args->out, {args->x}), Run);
}
