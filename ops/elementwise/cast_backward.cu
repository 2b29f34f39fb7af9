// SPDX-License-Identifier: Apache-2.0
// Gradient of cast on CUDA: grad_out as the dtype of x; see cast_cuda.h.
#include "anyop/ops/cast_backward.h"
#include "cast_cuda.h"

extern "C" int32_t anyop_cast_backward_cuda(const CastBackwardArgs* args, AnyopCall* call) {
  return anyop::cuda::RunCast(call, args->grad_out, args->grad_x);
}
