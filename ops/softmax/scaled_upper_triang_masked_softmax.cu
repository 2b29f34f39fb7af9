// SPDX-License-Identifier: Apache-2.0
// scaled_upper_triang_masked_softmax on CUDA: see scaled_softmax_rows.h.
#include "anyop/ops/scaled_upper_triang_masked_softmax.h"
#include "scaled_softmax_rows.h"

extern "C" int32_t anyop_scaled_upper_triang_masked_softmax_cuda(
    const ScaledUpperTriangMaskedSoftmaxArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return RunScaledSoftmax<LeaveOut::kAboveDiagonal>(call, {args->rows * args->S, args->S}, args->x,
                                                    nullptr, args->scale, args->out);
}
