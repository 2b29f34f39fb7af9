// SPDX-License-Identifier: Apache-2.0
// rms_norm_quant and fused_add_rms_norm_quant on the CPU: a row is read from memory once, summed in
// the cache and quantised from there (quantize_row.h), in float32. The fused one first writes the
// sum of two rows, and normalises what it has written.
#include "anyop/ops/rms_norm_quant.h"

#include "../quant/quantize_row.h"
#include "anyop/ops/fused_add_rms_norm_quant.h"

namespace anyop::cpu {
namespace {

// residual and sum are nullptr where the operator has none.
struct Work {
  const AnyopTensor *x, *residual, *sum, *weight;
  double eps, weight_offset;
  int64_t D;
  QuantizedRows out;
};

ANYOP_CPU_CLONES void Run(const Work* work, int64_t begin, int64_t end) {
  const int64_t D = work->D;
  const Rows x(work->x), residual(work->residual ? work->residual : work->x),
      rows(work->sum ? work->sum : work->x);
  RowReader<float> weight(work->weight, 1, D);
  const float offset = static_cast<float>(work->weight_offset);
  for (int64_t row = begin; row < end; ++row) {
    if (work->sum) {
      RowReader<float> a(x.dtype(), x[row], D), b(residual.dtype(), residual[row], D);
      RowWriter<float> to(rows.dtype(), rows[row]);
      MapRow(D, [](float v, float r) { return v + r; }, to, a, b);
    }
    RowReader<float> in(rows.dtype(), rows[row], D);
    const double mean = Sum(D, [](float v) { return v * v; }, in) / static_cast<double>(D);
    const float scale = static_cast<float>(1 / __builtin_sqrt(mean + work->eps));
    const auto normal = [=](float v, float w) { return v * scale * (w + offset); };
    work->out.Write(row, normal, in, weight);
  }
}

template <typename Args>
int32_t RunQuant(const Args* args, AnyopCall* call, const AnyopTensor* residual,
                 const AnyopTensor* sum) {
  const Work work = {args->x,   residual,
                     sum,       args->weight,
                     args->eps, args->weight_offset,
                     args->D,   {args->out, args->scale, args->scales, args->D, args->group}};
  return RunRows(call, &work, args->rows, args->D, Run);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_rms_norm_quant_cpu(const RmsNormQuantArgs* args, AnyopCall* call) {
  return anyop::cpu::RunQuant(args, call, nullptr, nullptr);
}
extern "C" int32_t anyop_fused_add_rms_norm_quant_cpu(const FusedAddRmsNormQuantArgs* args,
                                                      AnyopCall* call) {
  return anyop::cpu::RunQuant(args, call, args->residual, args->sum);
}
