// SPDX-License-Identifier: Apache-2.0
// Gradients of rope_qk on CUDA, of both or of one, in one launch: see rotary_rows.h.
#include "anyop/ops/rope_qk_backward.h"
#include "rotary_rows.h"

extern "C" int32_t anyop_rope_qk_backward_cuda(const RopeQkBackwardArgs* args, AnyopCall* call) {
  const AnyopTensor* const tensors[] = {args->grad_q ? args->grad_q_out : nullptr, args->grad_q,
                                        args->grad_k ? args->grad_k_out : nullptr, args->grad_k};
  return anyop::cuda::RunRotation<true>(call, args, tensors);
}
