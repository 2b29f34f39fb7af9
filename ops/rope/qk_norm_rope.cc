// SPDX-License-Identifier: Apache-2.0
// RMS norm of each head of queries and keys, then rope, on the CPU: a head is read once, computed
// in float32 (float64) in the first-level cache, and written.
#include "anyop/ops/qk_norm_rope.h"

#include "head_norm.h"

namespace anyop::cpu {
namespace {

struct Work {
  const QkNormRopeArgs& args;
  const AnyopTensor* weights[2];
  Table table;
  TableRows rows;
  const Heads* heads;
};

template <typename Wide>
inline void NormTokens(const Work& work, int64_t begin, int64_t end) {
  const int64_t D = work.args.D, R = work.args.R;
  const HeadWeight<Wide> weights[2] = {{work.weights[0], work.args.weight_offset},
                                       {work.weights[1], work.args.weight_offset}};
  Angles<Wide> angles;
  alignas(64) Wide head[kBlock];
  for (int64_t token = begin; token < end; ++token) {
    angles.Read(work.table, work.rows[token], 0, R / 2);
    for (int t = 0; t < 2; ++t) {
      const AnyopTensor* tensor = work.heads[t].x_tensor;
      work.heads[t].ForEach(token, [&](const char* x, char* out) {
        Angles<Wide>::ReadWide(tensor, x, D, head);
        const Wide scale = static_cast<Wide>(ReciprocalRoot(head, D, work.args.eps));
        Apply(D, [scale](Wide v, Wide w) { return v * scale * w; }, head, head, weights[t].at);
        RotateBlock(work.table, head, angles);
        RowWriter<Wide> to(work.heads[t].out.dtype(), out);
        __builtin_memcpy(to.Target(0), head, static_cast<size_t>(D) * sizeof(Wide));
        to.Write(0, D);
      });
    }
  }
}

ANYOP_CPU_CLONES void Run(const Work* work, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(work->args.q),
            [&](auto wide) { NormTokens<decltype(wide)>(*work, begin, end); });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_qk_norm_rope_cpu(const QkNormRopeArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  Heads heads[2] = {{args->q, args->q_out}, {args->k, args->k_out}};
  if (const int32_t status = OrderHeads(call, heads)) return status;
  const bool k_first = heads[0].x_tensor != args->q;
  Work work = {
      *args,
      {k_first ? args->k_weight : args->q_weight, k_first ? args->q_weight : args->k_weight},
      {args->cos, args->sin, args->interleaved != 0, false},
      {},
      heads};
  const int64_t tokens = args->numel_X * args->S;
  if (const int32_t status =
          FindRows(call, args->positions, nullptr, tokens, args->S, args->P, &work.rows))
    return status;
  if (args->D == 0) return kAnyopOk;
  return RunRows(call, &work, tokens, (args->H + args->G) * args->D, Run);
}
