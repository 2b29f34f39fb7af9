// SPDX-License-Identifier: Apache-2.0
// log_softmax on CUDA: see over_dim_rows.h.
#include "anyop/ops/log_softmax.h"
#include "over_dim_rows.h"

extern "C" int32_t anyop_log_softmax_cuda(const LogSoftmaxArgs* args, AnyopCall* call) {
  return anyop::cuda::RunSoftmax<true>(args, call);
}
