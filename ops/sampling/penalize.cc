// SPDX-License-Identifier: Apache-2.0
// penalize on the CPU: threads take rows, a block at a time.
#include "anyop/ops/penalize.h"

#include "anyop/cpu/rows.h"
#include "penalty.h"

namespace anyop::sampling {
namespace {

ANYOP_CPU_CLONES void Penalize(Penalty penalty, const uint8_t* in_prompt, const int32_t* counts,
                               int64_t n, float* x) {
#pragma omp simd
  for (int64_t i = 0; i < n; ++i) x[i] = penalty(x[i], in_prompt[i] != 0, counts[i]);
}

void PenalizeRows(const PenalizeArgs& args, int64_t begin, int64_t end) {
  using Floats = cpu::Types<float, cpu::float16, cpu::bfloat16>;
  const cpu::Rows logits(args.logits), masks(args.prompt_mask), counts(args.output_counts);
  const Penalties penalties = PenaltiesOf(args);
  const int64_t bytes = args.logits->dtype_bits / 8;
  for (int64_t b = begin; b < end; ++b) {
    for (int64_t v = 0; v < args.V; v += cpu::kBlock) {
      float x[cpu::kBlock];
      const int64_t n = args.V - v < cpu::kBlock ? args.V - v : cpu::kBlock;
      char* const at = logits[b] + v * bytes;
      cpu::Widen(Floats(), logits.dtype(), at, n, x);
      Penalize(penalties[b], reinterpret_cast<const uint8_t*>(masks[b]) + v,
               reinterpret_cast<const int32_t*>(counts[b]) + v, n, x);
      cpu::Narrow(Floats(), x, n, logits.dtype(), at);
    }
  }
}

}  // namespace
}  // namespace anyop::sampling

extern "C" int32_t anyop_penalize_cpu(const PenalizeArgs* args, AnyopCall* call) {
  const int64_t grain = anyop::cpu::kGrain / (args->V + 1) + 1;
  anyop::ParallelFor(call, args->B, grain, [&](int64_t begin, int64_t end) {
    anyop::sampling::PenalizeRows(*args, begin, end);
  });
  return kAnyopOk;
}
