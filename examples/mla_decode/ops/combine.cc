// SPDX-License-Identifier: Apache-2.0
// combine on the CPU: the parts of one head are weighted and added in float32, their weights in
// float64.
#include "mla/ops/combine.h"

#include <cmath>

#include "anyop/cpu/rows.h"

namespace anyop::mla {
namespace {

// Where the parts of row b * H + h begin: part k is k * H rows further.
int64_t FirstOf(const CombineArgs& args, int64_t row) {
  return row / args.H * args.K * args.H + row % args.H;
}

void CombineRow(const CombineArgs& args, int64_t row) {
  const int64_t R = args.R, H = args.H, first = FirstOf(args, row);
  const float* lse = static_cast<const float*>(args.lse->data) + first;
  const float* partial = static_cast<const float*>(args.partial->data) + first * R;
  float most = -INFINITY;
  for (int64_t k = 0; k < args.K; ++k) most = lse[k * H] > most ? lse[k * H] : most;
  const float base = most == -INFINITY ? 0 : most;
  double weights = 0;
  for (int64_t k = 0; k < args.K; ++k) weights += std::exp(double{lse[k * H]} - base);
  static_cast<float*>(args.total->data)[row] =
      weights == 0 ? -INFINITY : static_cast<float>(base + std::log(weights));
  const AnyopDtype dtype = AnyopDtypeOf(args.out);
  cpu::RowWriter<float> out(
      dtype, static_cast<char*>(args.out->data) + row * R * (args.out->dtype_bits / 8));
  cpu::ForBlocks(R, [&](int64_t begin, int64_t size) {
    float* sum = out.Target(begin);
    for (int64_t r = 0; r < size; ++r) sum[r] = 0;
    for (int64_t k = 0; k < args.K; ++k) {
      const auto weight = static_cast<float>(std::exp(double{lse[k * H]} - base) / weights);
      if (lse[k * H] == -INFINITY || weight == 0) continue;
      const float* part = partial + k * H * R + begin;
      for (int64_t r = 0; r < size; ++r) sum[r] += weight * part[r];
    }
    out.Write(begin, size);
  });
}

ANYOP_CPU_CLONES void Run(const CombineArgs* args, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) CombineRow(*args, row);
}

}  // namespace
}  // namespace anyop::mla

extern "C" int32_t mla_combine_cpu(const CombineArgs* args, AnyopCall* call) {
  return anyop::cpu::RunRows(call, args, args->B * args->H, args->R * args->K, anyop::mla::Run);
}
