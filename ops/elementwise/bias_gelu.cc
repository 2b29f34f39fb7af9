// SPDX-License-Identifier: Apache-2.0
// bias_gelu on the CPU: one read and one write an element, computed in float32 (float64 for
// float64).
#include "anyop/ops/bias_gelu.h"

#include "anyop/cpu/rows.h"
#include "gelu_forms.h"

namespace anyop::cpu {
namespace {

template <typename Gelu>
inline void Activate(const BiasGeluArgs* args, int64_t begin, int64_t end) {
  const Rows x(args->x), out(args->out);
  WithFloat(x.dtype(), [&](auto wide) {
    using Wide = decltype(wide);
    RowReader<Wide> bias(args->bias, 0, args->D);
    for (int64_t row = begin; row < end; ++row) {
      RowReader<Wide> in(x.dtype(), x[row], args->D);
      RowWriter<Wide> to(x.dtype(), out[row]);
      MapRow(args->D, [](Wide v, Wide b) { return Gelu::Value(v + b); }, to, in, bias);
    }
  });
}
ANYOP_CPU_CLONES void RunErf(const BiasGeluArgs* args, int64_t begin, int64_t end) {
  Activate<GeluErf>(args, begin, end);
}
ANYOP_CPU_CLONES void RunTanh(const BiasGeluArgs* args, int64_t begin, int64_t end) {
  Activate<GeluTanh>(args, begin, end);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_bias_gelu_cpu(const BiasGeluArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  const auto run = [&](auto rows) { return RunRows(call, args, args->rows, args->D, rows); };
  return WithGelu(
      call, args->approximate.data, [&] { return run(RunErf); }, [&] { return run(RunTanh); });
}
