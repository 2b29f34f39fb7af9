// SPDX-License-Identifier: Apache-2.0
// cross_entropy and its gradient on the CPU: a thread reads a row from memory once, and again from
// the cache when it writes the gradient, which may be where the row lies.
#include "anyop/ops/cross_entropy_with_grad.h"

#include "class_sums.h"

namespace anyop::cpu {
namespace {

template <typename Wide>
inline void LossesAndGradients(const CrossEntropyWithGradArgs& args, int64_t begin, int64_t end) {
  const Rows x(args.x), grad_x(args.grad_x);
  const Targets targets(args.target, args.ignore_index);
  const Wide scale = args.scale ? *static_cast<const Wide*>(args.scale->data) : Wide{1};
  for (int64_t row = begin; row < end; ++row) {
    const int64_t target = targets[row];
    Wide* loss = static_cast<Wide*>(args.loss->data) + row;
    if (target == targets.ignored) {
      *loss = 0;
      __builtin_memset(grad_x[row], 0, args.V * SizeOfFloat(grad_x.dtype()));
      continue;
    }
    RowReader<Wide> in(x.dtype(), x[row], args.V);
    const double smoothing = args.label_smoothing;
    const ClassSums sums = SumsOfRow(args.V, in, target, smoothing > 0);
    *loss = static_cast<Wide>(sums.Loss(args.V, smoothing, args.z_loss));
    const double of_sum = args.z_loss != 0 ? 1 + 2 * args.z_loss * sums.log_sum() : 1;
    const ClassGradient<Wide> gradient = {
        static_cast<Wide>(sums.most), static_cast<Wide>(of_sum / sums.sum) * scale,
        static_cast<Wide>(smoothing / static_cast<double>(args.V)) * scale,
        static_cast<Wide>(1 - smoothing) * scale};
    gradient.Write(args.V, in, target, grad_x.dtype(), grad_x[row]);
  }
}

ANYOP_CPU_CLONES void Run(const CrossEntropyWithGradArgs* args, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(args->x),
            [&](auto wide) { LossesAndGradients<decltype(wide)>(*args, begin, end); });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_cross_entropy_with_grad_cpu(const CrossEntropyWithGradArgs* args,
                                                     AnyopCall* call) {
  return anyop::cpu::RunClassRows(call, args, anyop::cpu::Run);
}
