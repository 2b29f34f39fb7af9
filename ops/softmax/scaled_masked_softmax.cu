// SPDX-License-Identifier: Apache-2.0
// scaled_masked_softmax on CUDA: see scaled_softmax_rows.h.
#include "anyop/ops/scaled_masked_softmax.h"
#include "scaled_softmax_rows.h"

extern "C" int32_t anyop_scaled_masked_softmax_cuda(const ScaledMaskedSoftmaxArgs* args,
                                                    AnyopCall* call) {
  using namespace anyop::cuda;
  return RunScaledSoftmax<LeaveOut::kFlagged>(call, {args->rows, args->D}, args->x, args->mask,
                                              args->scale, args->out);
}
