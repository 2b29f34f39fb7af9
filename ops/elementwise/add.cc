// SPDX-License-Identifier: Apache-2.0
// add on the CPU: one read of each input and one write an element; integers modulo 2^32 or 2^64, so
// exactly.
#include "anyop/ops/add.h"

#include "anyop/cpu/map.h"

namespace anyop::cpu {
namespace {

// x + alpha y, of float, vectors of float, or double.
struct FloatSum {
  double alpha;
  template <typename Wide>
  Wide operator()(const Wide& x, const Wide& y) const {
    return x + static_cast<float>(alpha) * y;
  }
  double operator()(double x, double y) const { return x + alpha * y; }
};
// Of integers, which wrap around.
struct IntegerSum {
  uint64_t alpha;
  int32_t operator()(int32_t x, int32_t y) const {
    return static_cast<int32_t>(static_cast<uint32_t>(x) +
                                static_cast<uint32_t>(alpha) * static_cast<uint32_t>(y));
  }
  int64_t operator()(int64_t x, int64_t y) const {
    return static_cast<int64_t>(static_cast<uint64_t>(x) + alpha * static_cast<uint64_t>(y));
  }
};

ANYOP_CPU_CLONES void RunFloat(const Plan<2>& plan, FloatSum sum, int64_t begin, int64_t end) {
  MapFloatNumbers(plan, begin, end, sum);
}
ANYOP_CPU_CLONES void RunInteger(const Plan<2>& plan, IntegerSum sum, int64_t begin, int64_t end) {
  MapIntegers(plan, begin, end, sum);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_add_cpu(const AddArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  const Plan<2> plan(args->out, {args->x, args->y});
  const double alpha = args->alpha;
  if (IsFloating(plan.out.dtype)) {
    const FloatSum sum{alpha};
    return RunMap(call, plan, [sum](const auto& plan, int64_t begin, int64_t end) {
      RunFloat(plan, sum, begin, end);
    });
  }
  const bool in_range = alpha >= -0x1p63 && alpha < 0x1p63;
  if (!in_range || alpha != static_cast<double>(static_cast<int64_t>(alpha))) {
    return call->fail(call, kAnyopValueError,
                      "alpha has a fraction or is too large, expected an integer for integers");
  }
  IntegerSum sum{static_cast<uint64_t>(static_cast<int64_t>(alpha))};
  if (plan.out.dtype == kAnyopBool) sum.alpha = sum.alpha != 0;
  return RunMap(call, plan, [sum](const auto& plan, int64_t begin, int64_t end) {
    RunInteger(plan, sum, begin, end);
  });
}
