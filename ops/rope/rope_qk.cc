// SPDX-License-Identifier: Apache-2.0
// rope of queries and keys on the CPU: each row of the table is read once for both; see rotary.h.
#include "anyop/ops/rope_qk.h"

#include "query_key.h"

extern "C" int32_t anyop_rope_qk_cpu(const RopeQkArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  Heads heads[2] = {{args->q, args->q_out}, {args->k, args->k_out}};
  if (const int32_t status = OrderHeads(call, heads)) return status;
  Rope rope = {{args->cos, args->sin, args->interleaved != 0, false}, {}, heads, 2};
  const int64_t tokens = args->numel_X * args->S;
  if (const int32_t status =
          FindRows(call, args->positions, args->cu_seqlens, tokens, args->S, args->P, &rope.rows))
    return status;
  return RunRows(call, &rope, tokens, (args->H + args->G) * args->D, RunRope);
}
