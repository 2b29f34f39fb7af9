// SPDX-License-Identifier: Apache-2.0
// Gradient of relu on the CPU: two reads and one write an element; exact.
#include "anyop/ops/relu_backward.h"

#include "anyop/cpu/map.h"
#include "anyop/cpu/math.h"

namespace anyop::cpu {
namespace {

// Of float, vectors of float, or double. Behind a NaN the gradient passes, as in PyTorch.
struct ReluGradient {
  template <typename Wide>
  Wide operator()(const Wide& g, const Wide& y) const {
    return y <= 0 ? Wide{} : g;
  }
  float operator()(float g, float y) const { return Kept(g, y); }
  double operator()(double g, double y) const { return Kept(g, y); }

  // By shifts, so that all of g is loaded: a choice would be compiled to loads under a mask, which
  // take half as long again beyond the cache.
  template <typename Wide>
  static Wide Kept(Wide g, Wide y) {
    constexpr int kSign = 8 * sizeof(Wide) - 1;
    const auto bits = ToBits(y), positive = (bits | (bits - 1)) >> kSign ^ 1;
    const auto is_nan = (ToBits(Bits<Wide>::kInfinity) - (bits << 1 >> 1)) >> kSign;
    return FromBits<Wide>(ToBits(g) & (0 - (positive | is_nan)));
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
