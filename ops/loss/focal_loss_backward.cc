// SPDX-License-Identifier: Apache-2.0
// Gradient of focal_loss on the CPU.
#include "anyop/ops/focal_loss_backward.h"

#include "anyop/cpu/rows.h"

namespace anyop::cpu {
namespace {

ANYOP_CPU_CLONES void Run(const FocalLossBackwardArgs* args, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(args->partial), [&](auto wide) {
    using Wide = decltype(wide);
    const Wide factor = *static_cast<const Wide*>(args->grad_loss->data) /
                        *static_cast<const Wide*>(args->num_positives->data);
    const Rows partial(args->partial), grad_x(args->grad_x);
    for (int64_t row = begin; row < end; ++row) {
      RowReader<Wide> in(partial.dtype(), partial[row], args->V);
      RowWriter<Wide> out(grad_x.dtype(), grad_x[row]);
      MapRow(args->V, [factor](Wide v) { return v * factor; }, out, in);
    }
  });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_focal_loss_backward_cpu(const FocalLossBackwardArgs* args,
                                                 AnyopCall* call) {
  return anyop::cpu::RunRows(call, args, args->rows, args->V, anyop::cpu::Run);
}
