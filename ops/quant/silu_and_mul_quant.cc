// SPDX-License-Identifier: Apache-2.0
// silu_and_mul_quant on the CPU: both halves of a row are read from memory once; see
// quantize_row.h.
#include "anyop/ops/silu_and_mul_quant.h"

#include "quantize_row.h"

namespace anyop::cpu {
namespace {

ANYOP_CPU_CLONES void Run(const SiluAndMulQuantArgs* args, int64_t begin, int64_t end) {
  const int64_t D = args->D, half_bytes = D * (args->x->dtype_bits / 8);
  const Rows x(args->x);
  const QuantizedRows out(args->out, args->scale, args->scales, D, args->group);
  for (int64_t row = begin; row < end; ++row) {
    RowReader<float> gate(x.dtype(), x[row], D), value(x.dtype(), x[row] + half_bytes, D);
    out.Write(row, [](float g, float v) { return g * Sigmoid(g) * v; }, gate, value);
  }
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_silu_and_mul_quant_cpu(const SiluAndMulQuantArgs* args, AnyopCall* call) {
  return anyop::cpu::RunRows(call, args, args->rows, 2 * args->D, anyop::cpu::Run);
}
