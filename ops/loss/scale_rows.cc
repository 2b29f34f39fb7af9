// SPDX-License-Identifier: Apache-2.0
// scale_rows on the CPU.
#include "anyop/ops/scale_rows.h"

#include "anyop/cpu/rows.h"

namespace anyop::cpu {
namespace {

template <typename Wide>
inline void ScaleRows(const ScaleRowsArgs& args, int64_t begin, int64_t end) {
  const Rows x(args.x), out(args.out), factors(args.factor, 0);
  for (int64_t row = begin; row < end; ++row) {
    const Wide factor = *reinterpret_cast<const Wide*>(factors[row]);
    if (factor == 1 && x[row] == out[row]) continue;
    RowReader<Wide> in(x.dtype(), x[row], args.V);
    RowWriter<Wide> to(out.dtype(), out[row]);
    MapRow(args.V, [factor](Wide v) { return v * factor; }, to, in);
  }
}

ANYOP_CPU_CLONES void Run(const ScaleRowsArgs* args, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(args->x),
            [&](auto wide) { ScaleRows<decltype(wide)>(*args, begin, end); });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_scale_rows_cpu(const ScaleRowsArgs* args, AnyopCall* call) {
  return anyop::cpu::RunRows(call, args, args->rows, args->V, anyop::cpu::Run);
}
