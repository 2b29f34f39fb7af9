// SPDX-License-Identifier: Apache-2.0
// rms_norm on the CPU: a row is read from memory once, summed and scaled in the cache, in float32
// (float64).
#include "anyop/ops/rms_norm.h"

#include "anyop/cpu_rows.h"

namespace anyop::cpu {
namespace {

template <typename Wide>
inline void Normalize(const RmsNormArgs* args, int64_t begin, int64_t end) {
  const Rows x(args->x), out(args->out);
  RowReader<Wide> weight(args->weight, 1, args->D);
  const double per_feature = 1.0 / static_cast<double>(args->D);
  for (int64_t row = begin; row < end; ++row) {
    RowReader<Wide> in(x.dtype(), x[row], args->D);
    const double mean = Sum(args->D, [](Wide v) { return v * v; }, in) * per_feature;
    const Wide scale = static_cast<Wide>(1 / __builtin_sqrt(mean + args->eps));
    RowWriter<Wide> to(out.dtype(), out[row]);
    MapRow(args->D, [scale](Wide v, Wide w) { return v * scale * w; }, to, in, weight);
  }
}

ANYOP_CPU_CLONES void Run(const RmsNormArgs* args, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(args->x), [&](auto wide) { Normalize<decltype(wide)>(args, begin, end); });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_rms_norm_cpu(const RmsNormArgs* args, AnyopCall* call) {
  return anyop::cpu::RunRows(call, args, args->rows, args->D, anyop::cpu::Run);
}
