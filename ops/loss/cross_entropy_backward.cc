// SPDX-License-Identifier: Apache-2.0
// Gradient of cross_entropy on the CPU: a thread takes a row, 1,024 logits at a time.
#include "anyop/ops/cross_entropy_backward.h"

#include "class_sums.h"

namespace anyop::cpu {
namespace {

template <typename Wide>
inline void Gradients(const CrossEntropyBackwardArgs& args, int64_t begin, int64_t end) {
  const Rows x(args.x), grad_x(args.grad_x);
  const Targets targets(args.target, args.ignore_index);
  const auto of_row = [](const AnyopTensor* tensor, int64_t row) {
    return tensor ? static_cast<const Wide*>(tensor->data)[row] : Wide{0};
  };
  const Wide smoothing = static_cast<Wide>(args.label_smoothing);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t target = targets[row];
    const bool counts = target != targets.ignored;
    const Wide lse = of_row(args.lse, row), given = counts ? of_row(args.grad_loss, row) : Wide{0},
               of_lse = of_row(args.grad_lse, row);
    if (given == 0 && of_lse == 0) {
      __builtin_memset(grad_x[row], 0, args.V * SizeOfFloat(grad_x.dtype()));
      continue;
    }
    const Wide of_sum =
        args.z_loss != 0 ? given * (1 + 2 * static_cast<Wide>(args.z_loss) * lse) : given;
    const ClassGradient<Wide> gradient = {lse, of_sum + of_lse,
                                          given * smoothing / static_cast<Wide>(args.V),
                                          given * (1 - smoothing)};
    RowReader<Wide> in(x.dtype(), x[row], args.V);
    gradient.Write(args.V, in, counts ? target : -1, grad_x.dtype(), grad_x[row]);
  }
}

ANYOP_CPU_CLONES void Run(const CrossEntropyBackwardArgs* args, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(args->x),
            [&](auto wide) { Gradients<decltype(wide)>(*args, begin, end); });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_cross_entropy_backward_cpu(const CrossEntropyBackwardArgs* args,
                                                    AnyopCall* call) {
  return anyop::cpu::RunClassRows(call, args, anyop::cpu::Run);
}
