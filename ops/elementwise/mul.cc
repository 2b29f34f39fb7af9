// SPDX-License-Identifier: Apache-2.0
// mul on the CPU: one read of each input and one write an element; integers modulo 2^32 or 2^64, so
// exactly.
#include "anyop/ops/mul.h"

#include "anyop/cpu/map.h"

namespace anyop::cpu {
namespace {

// Of integers, which wrap around.
struct IntegerProduct {
  int32_t operator()(int32_t x, int32_t y) const {
    return static_cast<int32_t>(static_cast<uint32_t>(x) * static_cast<uint32_t>(y));
  }
  int64_t operator()(int64_t x, int64_t y) const {
    return static_cast<int64_t>(static_cast<uint64_t>(x) * static_cast<uint64_t>(y));
  }
};

ANYOP_CPU_CLONES void RunFloat(const Plan<2>& plan, int64_t begin, int64_t end) {
  MapFloatNumbers(plan, begin, end, [](const auto& x, const auto& y) { return x * y; });
}
ANYOP_CPU_CLONES void RunInteger(const Plan<2>& plan, int64_t begin, int64_t end) {
  MapIntegers(plan, begin, end, IntegerProduct());
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_mul_cpu(const MulArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  const Plan<2> plan(args->out, {args->x, args->y});
  return IsFloating(plan.out.dtype) ? RunMap(call, plan, RunFloat) : RunMap(call, plan, RunInteger);
}
