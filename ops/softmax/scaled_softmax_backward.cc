// SPDX-License-Identifier: Apache-2.0
// Gradient of scaled_softmax and scaled_masked_softmax on the CPU; see scaled_row.h.
#include "anyop/ops/scaled_softmax_backward.h"

#include "scaled_row.h"

namespace anyop::cpu {
namespace {

ANYOP_CPU_CLONES void Run(const ScaledSoftmaxBackwardArgs* args, int64_t begin, int64_t end) {
  const Rows grad_out(args->grad_out), out(args->out), grad_x(args->grad_x);
  WithFloat(out.dtype(), [&](auto wide) {
    for (int64_t row = begin; row < end; ++row) {
      ScaledSoftmaxGradientRow<decltype(wide)>(args->D, args->D, args->scale, out.dtype(),
                                               grad_out[row], out[row], grad_x[row]);
    }
  });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_scaled_softmax_backward_cpu(const ScaledSoftmaxBackwardArgs* args,
                                                     AnyopCall* call) {
  return anyop::cpu::RunRows(call, args, args->rows, args->D, anyop::cpu::Run);
}
