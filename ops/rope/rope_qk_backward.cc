// SPDX-License-Identifier: Apache-2.0
// Gradients of rope_qk on the CPU, of both or of one; see rotary.h.
#include "anyop/ops/rope_qk_backward.h"

#include "rotary.h"

extern "C" int32_t anyop_rope_qk_backward_cpu(const RopeQkBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  const Heads q(args->grad_q_out, args->grad_q ? args->grad_q : args->grad_q_out),
      k(args->grad_k_out, args->grad_k ? args->grad_k : args->grad_k_out);
  const Heads heads[2] = {args->grad_q ? q : k, k};
  const int count = (args->grad_q != nullptr) + (args->grad_k != nullptr);
  Rope rope = {{args->cos, args->sin, args->interleaved != 0, true}, {}, heads, count};
  const int64_t tokens = args->numel_X * args->S;
  if (const int32_t status =
          FindRows(call, args->positions, args->cu_seqlens, tokens, args->S, args->P, &rope.rows))
    return status;
  if (count == 0) return kAnyopOk;
  return RunRows(call, &rope, tokens, (args->H + args->G) * args->D, RunRope);
}
