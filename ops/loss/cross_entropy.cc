// SPDX-License-Identifier: Apache-2.0
// cross_entropy on the CPU: a thread reads a row once, 1,024 logits at a time (class_sums.h).
#include "anyop/ops/cross_entropy.h"

#include "class_sums.h"

namespace anyop::cpu {
namespace {

template <typename Wide>
inline void Losses(const CrossEntropyArgs& args, int64_t begin, int64_t end) {
  const Rows x(args.x);
  const Targets targets(args.target, args.ignore_index);
  for (int64_t row = begin; row < end; ++row) {
    RowReader<Wide> in(x.dtype(), x[row], args.V);
    const int64_t target = targets[row];
    const ClassSums sums = SumsOfRow(args.V, in, target, args.label_smoothing > 0);
    static_cast<Wide*>(args.lse->data)[row] = static_cast<Wide>(sums.log_sum());
    static_cast<Wide*>(args.loss->data)[row] =
        target == targets.ignored
            ? Wide{0}
            : static_cast<Wide>(sums.Loss(args.V, args.label_smoothing, args.z_loss));
  }
}

ANYOP_CPU_CLONES void Run(const CrossEntropyArgs* args, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(args->x), [&](auto wide) { Losses<decltype(wide)>(*args, begin, end); });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_cross_entropy_cpu(const CrossEntropyArgs* args, AnyopCall* call) {
  return anyop::cpu::RunClassRows(call, args, anyop::cpu::Run);
}
