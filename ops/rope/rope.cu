// SPDX-License-Identifier: Apache-2.0
// rope on CUDA: see rotary_rows.h.
#include "anyop/ops/rope.h"
#include "rotary_rows.h"

extern "C" int32_t anyop_rope_cuda(const RopeArgs* args, AnyopCall* call) {
  return anyop::cuda::RunRotation<false>(call, args, {args->x, args->out, nullptr, nullptr});
}
