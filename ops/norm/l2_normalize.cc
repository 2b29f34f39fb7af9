// SPDX-License-Identifier: Apache-2.0
// l2_normalize on the CPU: a row is read from memory once, summed and scaled in the cache, in
// float32 (float64).
#include "anyop/ops/l2_normalize.h"

#include "anyop/cpu/rows.h"

namespace anyop::cpu {
namespace {

template <typename Wide>
inline void Normalize(const L2NormalizeArgs* args, int64_t begin, int64_t end) {
  const Rows x(args->x), out(args->out);
  for (int64_t row = begin; row < end; ++row) {
    RowReader<Wide> in(x.dtype(), x[row], args->D);
    const double norm = __builtin_sqrt(Sum(args->D, [](Wide v) { return v * v; }, in));
    const Wide scale = static_cast<Wide>(1 / (norm < args->eps ? args->eps : norm));
    RowWriter<Wide> to(out.dtype(), out[row]);
    MapRow(args->D, [scale](Wide v) { return v * scale; }, to, in);
  }
}

ANYOP_CPU_CLONES void Run(const L2NormalizeArgs* args, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(args->x), [&](auto wide) { Normalize<decltype(wide)>(args, begin, end); });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_l2_normalize_cpu(const L2NormalizeArgs* args, AnyopCall* call) {
  return anyop::cpu::RunRows(call, args, args->rows, args->D, anyop::cpu::Run);
}
