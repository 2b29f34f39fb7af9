// SPDX-License-Identifier: Apache-2.0
// Decoding over latent rows: each sequence is a problem of attention's blocks with one group of
// heads, whose values are the first numbers of its keys.
#include "anyop/ops/mla_decode.h"

#include "attention_blocks.h"
#include "attention_packed.h"

namespace anyop {
namespace {

int32_t Decode(const MlaDecodeArgs& args, AnyopCall* call) {
  if (const int32_t status = CheckPages(call, args)) return status;
  if (args.B == 0 || args.S == 0 || args.H == 0) return kAnyopOk;
  const auto* lengths = static_cast<const int32_t*>(args.seqlens_k->data);
  const auto* table = static_cast<const int32_t*>(args.page_table->data);
  const auto with = [&](int64_t b, const auto& visit) {
    HeadsFirst q(args.q, b), out(args.out, b), lse(args.lse, b);
    const KeyWindow window(lengths[b], args.causal, lengths[b] - args.S, -1, -1);
    visit(LatentProblem(q.get(), args.cache, nullptr, out.get(), lse.get(), window, args.scale,
                        {table + b * args.M, args.P}));
  };
  return AttendTogether<float>(args.B, with, call);
}

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_mla_decode_cpu(const MlaDecodeArgs* args, AnyopCall* call) {
  return anyop::Decode(*args, call);
}
