// SPDX-License-Identifier: Apache-2.0
// softmax on CUDA: see over_dim_rows.h.
#include "anyop/ops/softmax.h"
#include "over_dim_rows.h"

extern "C" int32_t anyop_softmax_cuda(const SoftmaxArgs* args, AnyopCall* call) {
  return anyop::cuda::RunSoftmax<false>(args, call);
}
