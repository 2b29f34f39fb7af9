// SPDX-License-Identifier: Apache-2.0
// masked_mean on the CPU: one read of the tokens that count. A unit of work is a sequence and up to
// kBlock features; 64 tokens at a time are summed in float32, their sums in float64.
#include "anyop/ops/masked_mean.h"

#include "anyop/cpu/rows.h"
#include "mask.h"

namespace anyop::cpu {
namespace {

template <typename Wide>
inline void MeanOf(const MaskedMeanArgs* args, int64_t sequence, int64_t first, int64_t n) {
  constexpr int64_t kFlush = 64;
  const AnyopDtype dtype = AnyopDtypeOf(args->x);
  const int64_t item_bytes = args->x->dtype_bits / 8, T = args->T;
  Wide part[kBlock];
  double sum[kBlock];
  for (int64_t j = 0; j < n; ++j) part[j] = 0, sum[j] = 0;
  int64_t count = 0;
  for (int64_t t = 0; t < T; ++t) {
    if (IsSet(args->mask, sequence * T + t)) {
      const int64_t offset = ((sequence * T + t) * args->D + first) * item_bytes;
      RowReader<Wide> in(dtype, static_cast<const char*>(args->x->data) + offset, n);
      Apply(n, [](Wide s, Wide v) { return s + v; }, part, part, in.Read(0, n));
      ++count;
    }
    if (t % kFlush < kFlush - 1 && t + 1 < T) continue;
    Apply(n, [](double s, double p) { return s + p; }, sum, sum, part);
    for (int64_t j = 0; j < n; ++j) part[j] = 0;
  }
  RowWriter<Wide> to(
      dtype, static_cast<char*>(args->out->data) + (sequence * args->D + first) * item_bytes);
  const double scale = count > 0 ? 1.0 / static_cast<double>(count) : 0;
  Apply(n, [scale](double s) { return static_cast<Wide>(s * scale); }, to.Target(0), sum);
  to.Write(0, n);
}

ANYOP_CPU_CLONES void Run(const MaskedMeanArgs* args, int64_t begin, int64_t end) {
  const int64_t tiles = (args->D + kBlock - 1) / kBlock;
  WithFloat(AnyopDtypeOf(args->x), [&](auto wide) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t first = unit % tiles * kBlock, left = args->D - first;
      MeanOf<decltype(wide)>(args, unit / tiles, first, left < kBlock ? left : kBlock);
    }
  });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_masked_mean_cpu(const MaskedMeanArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  const int64_t units = args->B * ((args->D + kBlock - 1) / kBlock);
  return RunRows(call, args, units, args->T * (args->D < kBlock ? args->D : kBlock), Run);
}
