// SPDX-License-Identifier: Apache-2.0
// Gradient of relu on the CPU: two reads and one write an element; exact.
#include "anyop/ops/relu_backward.h"

#include "anyop/cpu_map.h"

namespace anyop::cpu {
namespace {

// Of float, vectors of float, or double. Behind a NaN the gradient passes, as in PyTorch.
struct ReluGradient {
  template <typename Wide>
  Wide operator()(const Wide& g, const Wide& y) const {
    return y <= 0 ? Wide{} : g;
  }
};

ANYOP_CPU_CLONES void Run(const Plan<2>& plan, int64_t begin, int64_t end) {
  if (MapFloat16(plan, begin, end, ReluGradient())) return;
  MapFloats<kLight>(plan, begin, end, ReluGradient());
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_relu_backward_cpu(const ReluBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  return RunMap(call, Plan<2>(args->grad_x, {args->grad_out, args->out}), Run);
}
