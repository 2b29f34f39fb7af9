// SPDX-License-Identifier: Apache-2.0
// Each thread writes some rows: a block of 32 factors after the other, in float32, rounded once.
#include "anyop/ops/w4_unpack.h"

#include "anyop/cpu/rows.h"
#include "w4_rows.h"

namespace anyop::cpu {
namespace {

ANYOP_CPU_CLONES void UnpackRows(const w4::Rows* w, const float* gathered, void* out, int64_t begin,
                                 int64_t end) {
  const int64_t item = w->scale_dtype == kAnyopFloat32 ? 4 : 2;
  for (int64_t n = begin; n < end; ++n) {
    RowWriter<float> writer(w->scale_dtype, static_cast<char*>(out) + n * w->K * item);
    for (int64_t k = 0; k < w->K; k += kBlock) {
      const int64_t count = w->K - k < kBlock ? w->K - k : kBlock;
      w4::UnpackPart(*w, gathered, n, k, count, writer.Target(k));
      writer.Write(k, count);
    }
  }
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_w4_unpack_cpu(const W4UnpackArgs* args, AnyopCall* call) {
  using namespace anyop;
  const w4::Rows rows =
      w4::RowsOf(args->weight, args->scale, args->zero, args->group_size, args->N, 2 * args->J);
  const int64_t numbers = 2 * rows.N * w4::GroupsOf(rows) + 1;
  auto* gathered = static_cast<float*>(call->workspace(call, numbers * 4));
  if (!gathered) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  w4::GatherAll(call, rows, gathered);
  ParallelFor(call, args->N, cpu::kGrain / (2 * args->J + 1) + 1, [&](int64_t begin, int64_t end) {
    cpu::UnpackRows(&rows, gathered, args->out->data, begin, end);
  });
  return kAnyopOk;
}
