// SPDX-License-Identifier: Apache-2.0
// silu_and_mul on the CPU: both halves of a row are read once, computed in float32 (float64 for
// float64).
#include "anyop/ops/silu_and_mul.h"

#include "anyop/cpu/math.h"
#include "anyop/cpu/rows.h"

namespace anyop::cpu {
namespace {

template <typename Wide>
inline void Combine(const SiluAndMulArgs* args, int64_t begin, int64_t end) {
  const Rows x(args->x), out(args->out);
  const int64_t half_bytes = args->D * (args->x->dtype_bits / 8);
  for (int64_t row = begin; row < end; ++row) {
    RowReader<Wide> gate(x.dtype(), x[row], args->D),
        value(x.dtype(), x[row] + half_bytes, args->D);
    RowWriter<Wide> to(out.dtype(), out[row]);
    MapRow(args->D, [](Wide g, Wide v) { return g * Sigmoid(g) * v; }, to, gate, value);
  }
}

ANYOP_CPU_CLONES void Run(const SiluAndMulArgs* args, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(args->x), [&](auto wide) { Combine<decltype(wide)>(args, begin, end); });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_silu_and_mul_cpu(const SiluAndMulArgs* args, AnyopCall* call) {
  return anyop::cpu::RunRows(call, args, args->rows, args->D, anyop::cpu::Run);
}
