// SPDX-License-Identifier: Apache-2.0
// token_bitmask on the CPU: threads take rows of bits; words that allow all are passed over.
#include "anyop/ops/token_bitmask.h"

#include "anyop/cpu/rows.h"
#include "draw.h"

namespace anyop::sampling {
namespace {

template <typename Raw>
void Forbid(const uint32_t* words, int64_t V, Raw forbidden, Raw* logits) {
  for (int64_t first = 0; first < V; first += 32) {
    for (uint32_t off = ~words[first / 32]; off; off &= off - 1) {
      const int64_t v = first + __builtin_ctz(off);
      if (v >= V) break;
      logits[v] = forbidden;
    }
  }
}

}  // namespace
}  // namespace anyop::sampling

extern "C" int32_t anyop_token_bitmask_cpu(const TokenBitmaskArgs* args, AnyopCall* call) {
  using namespace anyop::sampling;
  const anyop::cpu::Rows logits(args->logits), bitmask(args->bitmask);
  const auto rows = PerRowOf<int64_t>(args->rows);
  const int64_t grain = anyop::cpu::kGrain / (args->V + 1) + 1;
  anyop::ParallelFor(call, args->B, grain, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      const int64_t row = rows.data ? rows[b] : b;
      if (row < 0 || row >= args->N) continue;
      const auto* words = reinterpret_cast<const uint32_t*>(bitmask[b]);
      if (logits.dtype() == kAnyopFloat32)
        Forbid<uint32_t>(words, args->V, 0xff800000u, reinterpret_cast<uint32_t*>(logits[row]));
      else
        Forbid<uint16_t>(words, args->V, logits.dtype() == kAnyopFloat16 ? 0xfc00 : 0xff80,
                         reinterpret_cast<uint16_t*>(logits[row]));
    }
  });
  return kAnyopOk;
}
