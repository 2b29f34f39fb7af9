// SPDX-License-Identifier: Apache-2.0
// Gradient of rope on CUDA: see rotary_rows.h.
#include "anyop/ops/rope_backward.h"
#include "rotary_rows.h"

extern "C" int32_t anyop_rope_backward_cuda(const RopeBackwardArgs* args, AnyopCall* call) {
  return anyop::cuda::RunRotation<true>(call, args,
                                        {args->grad_out, args->grad_x, nullptr, nullptr});
}
