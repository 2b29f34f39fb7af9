// SPDX-License-Identifier: Apache-2.0
// Gradient of gelu_and_mul on the CPU: both halves of a row and their gradient are read once,
// computed in float32 (float64 for float64).
#include "anyop/ops/gelu_and_mul_backward.h"

#include "anyop/cpu/rows.h"
#include "gelu_forms.h"

namespace anyop::cpu {
namespace {

template <typename Gelu>
inline void Differentiate(const GeluAndMulBackwardArgs* args, int64_t begin, int64_t end) {
  const Rows x(args->x), grad_out(args->grad_out), grad_x(args->grad_x);
  const int64_t D = args->D, half_bytes = D * (args->x->dtype_bits / 8);
  WithFloat(x.dtype(), [&](auto wide) {
    using Wide = decltype(wide);
    for (int64_t row = begin; row < end; ++row) {
      RowReader<Wide> gate(x.dtype(), x[row], D), value(x.dtype(), x[row] + half_bytes, D),
          grad(x.dtype(), grad_out[row], D);
      RowWriter<Wide> to_gate(x.dtype(), grad_x[row]),
          to_value(x.dtype(), grad_x[row] + half_bytes);
      const auto of_gate = [](Wide g, Wide x, Wide v) { return g * v * Gelu::Slope(x); };
      MapRow(D, of_gate, to_gate, grad, gate, value);
      MapRow(D, [](Wide g, Wide x) { return g * Gelu::Value(x); }, to_value, grad, gate);
    }
  });
}
ANYOP_CPU_CLONES void RunErf(const GeluAndMulBackwardArgs* args, int64_t begin, int64_t end) {
  Differentiate<GeluErf>(args, begin, end);
}
ANYOP_CPU_CLONES void RunTanh(const GeluAndMulBackwardArgs* args, int64_t begin, int64_t end) {
  Differentiate<GeluTanh>(args, begin, end);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_gelu_and_mul_backward_cpu(const GeluAndMulBackwardArgs* args,
                                                   AnyopCall* call) {
  using namespace anyop::cpu;
  const auto run = [&](auto rows) { return RunRows(call, args, args->rows, 2 * args->D, rows); };
  return WithGelu(
      call, args->approximate.data, [&] { return run(RunErf); }, [&] { return run(RunTanh); });
}
