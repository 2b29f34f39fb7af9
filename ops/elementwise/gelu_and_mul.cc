// SPDX-License-Identifier: Apache-2.0
// gelu_and_mul on the CPU: both halves of a row are read once, computed in float32 (float64 for
// float64).
#include "anyop/ops/gelu_and_mul.h"

#include "anyop/cpu/rows.h"
#include "gelu_forms.h"

namespace anyop::cpu {
namespace {

template <typename Gelu>
inline void Combine(const GeluAndMulArgs* args, int64_t begin, int64_t end) {
  const Rows x(args->x), out(args->out);
  const int64_t D = args->D, half_bytes = D * (args->x->dtype_bits / 8);
  WithFloat(x.dtype(), [&](auto wide) {
    using Wide = decltype(wide);
    for (int64_t row = begin; row < end; ++row) {
      RowReader<Wide> gate(x.dtype(), x[row], D), value(x.dtype(), x[row] + half_bytes, D);
      RowWriter<Wide> to(out.dtype(), out[row]);
      MapRow(D, [](Wide g, Wide v) { return Gelu::Value(g) * v; }, to, gate, value);
    }
  });
}
ANYOP_CPU_CLONES void RunErf(const GeluAndMulArgs* args, int64_t begin, int64_t end) {
  Combine<GeluErf>(args, begin, end);
}
ANYOP_CPU_CLONES void RunTanh(const GeluAndMulArgs* args, int64_t begin, int64_t end) {
  Combine<GeluTanh>(args, begin, end);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_gelu_and_mul_cpu(const GeluAndMulArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  const auto run = [&](auto rows) { return RunRows(call, args, args->rows, args->D, rows); };
  return WithGelu(
      call, args->approximate.data, [&] { return run(RunErf); }, [&] { return run(RunTanh); });
}
