// SPDX-License-Identifier: Apache-2.0
// Each thread packs some blocks of 32 factors, of all results, whose bits lie side by side in a
// checkpoint.
#include "anyop/ops/w4_pack.h"

#include "w4_checkpoint.h"

extern "C" int32_t anyop_w4_pack_cpu(const W4PackArgs* args, AnyopCall* call) {
  using namespace anyop;
  const w4::Format format = w4::FormatOf(args->format);
  const w4::Checkpoint c = w4::CheckpointOf(args, format);
  const int64_t blocks = (c.K + w4::kFactors - 1) / w4::kFactors;
  const bool by_rows = format == w4::Format::kPlain;
  ParallelFor(call, c.N * blocks, 512, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t n = by_rows ? i / blocks : i % c.N, b = by_rows ? i % blocks : i / c.N;
      w4::PackBlock(c, format, n, b);
    }
  });
  ParallelFor(call, c.zero_words, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) c.zero[i] = w4::PackZeros(c, format, i);
  });
  return kAnyopOk;
}
