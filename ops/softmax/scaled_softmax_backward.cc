// SPDX-License-Identifier: Apache-2.0
// Gradient of scaled_softmax and scaled_masked_softmax on the CPU; see scaled_row.h.
#include "anyop/ops/scaled_softmax_backward.h"

#include "scaled_row.h"

namespace anyop::cpu {
namespace {

ANYOP_CPU_CLONES void Run(const ScaledSoftmaxBackwardArgs* args, int64_t begin, int64_t end) {
  const Rows grad_out(args->grad_out), out(args->out), grad_x(args->grad_x);
  WithFloat(out.dtype(), [&](auto wide) {
    using Wide = decltype(wide);
    for (int64_t row = begin; row < end; ++row) {
      RowReader<Wide> grad(out.dtype(), grad_out[row], args->D), y(out.dtype(), out[row], args->D);
      RowWriter<Wide> to(out.dtype(), grad_x[row]);
      ScaledSoftmaxGradientRow(args->D, static_cast<Wide>(args->scale), to, grad, y);
    }
  });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_scaled_softmax_backward_cpu(const ScaledSoftmaxBackwardArgs* args,
                                                     AnyopCall* call) {
  return anyop::cpu::RunRows(call, args, args->rows, args->D, anyop::cpu::Run);
}
