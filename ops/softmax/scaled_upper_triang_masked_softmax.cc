// SPDX-License-Identifier: Apache-2.0
// scaled_upper_triang_masked_softmax on the CPU: only the lower triangle is read, once; see
// scaled_row.h.
#include "anyop/ops/scaled_upper_triang_masked_softmax.h"

#include "scaled_row.h"

namespace anyop::cpu {
namespace {

ANYOP_CPU_CLONES void Run(const ScaledUpperTriangMaskedSoftmaxArgs* args, int64_t begin,
                          int64_t end) {
  const int64_t S = args->S;
  const Rows x(args->x), out(args->out);
  WithFloat(x.dtype(), [&](auto wide) {
    using Wide = decltype(wide);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t n = row % S + 1;
      RowReader<Wide> in(x.dtype(), x[row], n);
      RowWriter<Wide> to(x.dtype(), out[row]);
      ScaledSoftmaxRow(n, args->scale, to, in);
      ZeroRest(out, row, n, S, args->out->dtype_bits / 8);
    }
  });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_scaled_upper_triang_masked_softmax_cpu(
    const ScaledUpperTriangMaskedSoftmaxArgs* args, AnyopCall* call) {
  return anyop::cpu::RunRows(call, args, args->rows * args->S, args->S, anyop::cpu::Run);
}
