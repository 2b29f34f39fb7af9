// SPDX-License-Identifier: Apache-2.0
// rope on the CPU; see rotary.h.
#include "anyop/ops/rope.h"

#include "rotary.h"

extern "C" int32_t anyop_rope_cpu(const RopeArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  const Heads heads(args->x, args->out);
  Rope rope = {{args->cos, args->sin, args->interleaved != 0, false}, {}, &heads, 1};
  const int64_t tokens = args->numel_X * args->S;
  if (const int32_t status =
          FindRows(call, args->positions, args->cu_seqlens, tokens, args->S, args->P, &rope.rows))
    return status;
  return RunRows(call, &rope, tokens, args->H * args->D, RunRope);
}
