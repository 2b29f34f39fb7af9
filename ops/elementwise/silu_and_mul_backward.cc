// SPDX-License-Identifier: Apache-2.0
// Gradient of silu_and_mul on the CPU: both halves of a row and their gradient are read once,
// computed in float32 (float64 for float64).
#include "anyop/ops/silu_and_mul_backward.h"

#include "anyop/cpu/math.h"
#include "anyop/cpu/rows.h"

namespace anyop::cpu {
namespace {

template <typename Wide>
inline void Differentiate(const SiluAndMulBackwardArgs* args, int64_t begin, int64_t end) {
  const Rows x(args->x), grad_out(args->grad_out), grad_x(args->grad_x);
  const int64_t D = args->D, half_bytes = D * (args->x->dtype_bits / 8);
  for (int64_t row = begin; row < end; ++row) {
    RowReader<Wide> gate(x.dtype(), x[row], D), value(x.dtype(), x[row] + half_bytes, D),
        grad(grad_out.dtype(), grad_out[row], D);
    RowWriter<Wide> to_gate(x.dtype(), grad_x[row]), to_value(x.dtype(), grad_x[row] + half_bytes);
    MapRow(
        D, [](Wide g, Wide x, Wide v) { return g * v * SiluSlope(x); }, to_gate, grad, gate, value);
    MapRow(D, [](Wide g, Wide x) { return g * (x * Sigmoid(x)); }, to_value, grad, gate);
  }
}

ANYOP_CPU_CLONES void Run(const SiluAndMulBackwardArgs* args, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(args->x),
            [&](auto wide) { Differentiate<decltype(wide)>(args, begin, end); });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_silu_and_mul_backward_cpu(const SiluAndMulBackwardArgs* args,
                                                   AnyopCall* call) {
  return anyop::cpu::RunRows(call, args, args->rows, 2 * args->D, anyop::cpu::Run);
}
