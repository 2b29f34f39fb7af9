// SPDX-License-Identifier: Apache-2.0
// Gradient of l2_normalize on the CPU: a row of x and of grad_out is read from memory once, summed
// and mapped in the cache, in float32 (float64).
#include "anyop/ops/l2_normalize_backward.h"

#include "anyop/cpu/rows.h"

namespace anyop::cpu {
namespace {

template <typename Wide>
inline void Differentiate(const L2NormalizeBackwardArgs* args, int64_t begin, int64_t end) {
  const int64_t D = args->D;
  const Rows x(args->x), grad_out(args->grad_out), grad_x(args->grad_x);
  for (int64_t row = begin; row < end; ++row) {
    RowReader<Wide> in(x.dtype(), x[row], D), grad(grad_out.dtype(), grad_out[row], D);
    const double norm = __builtin_sqrt(Sum(D, [](Wide v) { return v * v; }, in));
    const double dot = Sum(D, [](Wide v, Wide g) { return v * g; }, in, grad);
    const bool is_short = norm < args->eps;  // divided by eps, which does not depend on x
    const Wide scale = static_cast<Wide>(1 / (is_short ? args->eps : norm));
    const Wide share = static_cast<Wide>(is_short ? 0 : dot / (norm * norm));
    RowWriter<Wide> to(grad_x.dtype(), grad_x[row]);
    MapRow(D, [=](Wide g, Wide v) { return (g - v * share) * scale; }, to, grad, in);
  }
}

ANYOP_CPU_CLONES void Run(const L2NormalizeBackwardArgs* args, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(args->x),
            [&](auto wide) { Differentiate<decltype(wide)>(args, begin, end); });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_l2_normalize_backward_cpu(const L2NormalizeBackwardArgs* args,
                                                   AnyopCall* call) {
  return anyop::cpu::RunRows(call, args, args->rows, args->D, anyop::cpu::Run);
}
