// SPDX-License-Identifier: Apache-2.0
// scaled_softmax on the CPU: a row is read from memory once; see scaled_row.h.
#include "anyop/ops/scaled_softmax.h"

#include "scaled_row.h"

namespace anyop::cpu {
namespace {

ANYOP_CPU_CLONES void Run(const ScaledSoftmaxArgs* args, int64_t begin, int64_t end) {
  const Rows x(args->x), out(args->out);
  WithFloat(x.dtype(), [&](auto wide) {
    using Wide = decltype(wide);
    for (int64_t row = begin; row < end; ++row) {
      RowReader<Wide> in(x.dtype(), x[row], args->D);
      RowWriter<Wide> to(x.dtype(), out[row]);
      ScaledSoftmaxRow(args->D, args->scale, to, in);
    }
  });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_scaled_softmax_cpu(const ScaledSoftmaxArgs* args, AnyopCall* call) {
  return anyop::cpu::RunRows(call, args, args->rows, args->D, anyop::cpu::Run);
}
