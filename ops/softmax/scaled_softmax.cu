// SPDX-License-Identifier: Apache-2.0
// scaled_softmax on CUDA: see scaled_softmax_rows.h.
#include "anyop/ops/scaled_softmax.h"
#include "scaled_softmax_rows.h"

extern "C" int32_t anyop_scaled_softmax_cuda(const ScaledSoftmaxArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return RunScaledSoftmax<LeaveOut::kNothing>(call, {args->rows, args->D}, args->x, nullptr,
                                              args->scale, args->out);
}
