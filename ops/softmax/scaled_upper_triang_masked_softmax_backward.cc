// SPDX-License-Identifier: Apache-2.0
// Gradient of scaled_upper_triang_masked_softmax on the CPU: only the lower triangles are read,
// once; see scaled_row.h.
#include "anyop/ops/scaled_upper_triang_masked_softmax_backward.h"

#include "scaled_row.h"

namespace anyop::cpu {
namespace {

ANYOP_CPU_CLONES void Run(const ScaledUpperTriangMaskedSoftmaxBackwardArgs* args, int64_t begin,
                          int64_t end) {
  const int64_t S = args->S;
  const Rows grad_out(args->grad_out), out(args->out), grad_x(args->grad_x);
  WithFloat(out.dtype(), [&](auto wide) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t n = row % S + 1;
      const int64_t whole = (n + 31) / 32 * 32, width = whole < S ? whole : S;
      ScaledSoftmaxGradientRow<decltype(wide)>(n, width, args->scale, out.dtype(), grad_out[row],
                                               out[row], grad_x[row]);
      ZeroRest(grad_x, row, n, S, args->out->dtype_bits / 8);
    }
  });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_scaled_upper_triang_masked_softmax_backward_cpu(
    const ScaledUpperTriangMaskedSoftmaxBackwardArgs* args, AnyopCall* call) {
  return anyop::cpu::RunRows(call, args, args->rows * args->S, args->S, anyop::cpu::Run);
}
