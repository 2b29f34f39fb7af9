// SPDX-License-Identifier: Apache-2.0
// Gradient of rope on the CPU; see rotary.h.
#include "anyop/ops/rope_backward.h"

#include "rotary.h"

extern "C" int32_t anyop_rope_backward_cpu(const RopeBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  const Heads heads(args->grad_out, args->grad_x);
  Rope rope = {{args->cos, args->sin, args->interleaved != 0, true}, {}, &heads, 1};
  const int64_t tokens = args->numel_X * args->S;
  if (const int32_t status =
          FindRows(call, args->positions, args->cu_seqlens, tokens, args->S, args->P, &rope.rows))
    return status;
  return RunRows(call, &rope, tokens, args->H * args->D, RunRope);
}
