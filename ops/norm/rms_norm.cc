// SPDX-License-Identifier: Apache-2.0
// rms_norm and its relatives on the CPU: a row is read from memory once, summed and scaled in the
// cache, in float32 (float64 where a tensor is). The fused ones first write the sum of two rows,
// and normalise what they have written.
#include "anyop/ops/rms_norm.h"

#include "anyop/cpu/rows.h"
#include "anyop/ops/fused_add_rms_norm.h"
#include "anyop/ops/native_rms_norm.h"
#include "anyop/ops/rms_norm_from_output.h"

namespace anyop::cpu {
namespace {

// residual and sum, or rstd, are nullptr where an operator has none.
struct Work {
  const AnyopTensor *x, *residual, *weight, *out, *sum;
  float* rstd;
  double eps, weight_offset;
  int64_t D;
};

template <typename Wide>
inline void Normalize(const Work* work, int64_t begin, int64_t end) {
  const int64_t D = work->D;
  const Rows x(work->x), out(work->out), residual = work->residual ? Rows(work->residual) : x,
                                         rows = work->sum ? Rows(work->sum) : x;
  RowReader<Wide> weight(work->weight, 1, D);
  const Wide offset = static_cast<Wide>(work->weight_offset);
  const double per_feature = 1.0 / static_cast<double>(D);
  for (int64_t row = begin; row < end; ++row) {
    if (work->sum) {
      RowReader<Wide> a(x.dtype(), x[row], D), b(residual.dtype(), residual[row], D);
      RowWriter<Wide> to(rows.dtype(), rows[row]);
      MapRow(D, [](Wide v, Wide r) { return v + r; }, to, a, b);
    }
    RowReader<Wide> in(rows.dtype(), rows[row], D);
    const double mean = Sum(D, [](Wide v) { return v * v; }, in) * per_feature;
    const double rstd = 1 / __builtin_sqrt((D > 0 ? mean : 0) + work->eps);
    if (work->rstd) work->rstd[row] = static_cast<float>(rstd);
    const Wide scale = static_cast<Wide>(rstd);
    RowWriter<Wide> to(out.dtype(), out[row]);
    MapRow(D, [=](Wide v, Wide w) { return v * scale * (w + offset); }, to, in, weight);
  }
}

ANYOP_CPU_CLONES void Run(const Work* work, int64_t begin, int64_t end) {
  WithFloat(WidestOf(work->x, work->out),
            [&](auto wide) { Normalize<decltype(wide)>(work, begin, end); });
}

template <typename Args>
int32_t RunNorm(const Args* args, AnyopCall* call, const AnyopTensor* residual,
                const AnyopTensor* sum, const AnyopTensor* rstd) {
  const Work work = {args->x,      residual,
                     args->weight, args->out,
                     sum,          rstd ? static_cast<float*>(rstd->data) : nullptr,
                     args->eps,    args->weight_offset,
                     args->D};
  return RunRows(call, &work, args->rows, args->D, Run);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_rms_norm_cpu(const RmsNormArgs* args, AnyopCall* call) {
  return anyop::cpu::RunNorm(args, call, nullptr, nullptr, nullptr);
}
extern "C" int32_t anyop_native_rms_norm_cpu(const NativeRmsNormArgs* args, AnyopCall* call) {
  return anyop::cpu::RunNorm(args, call, nullptr, nullptr, args->rstd);
}
extern "C" int32_t anyop_rms_norm_from_output_cpu(const RmsNormFromOutputArgs* args,
                                                  AnyopCall* call) {
  return anyop::cpu::RunNorm(args, call, nullptr, nullptr, args->rstd);
}
extern "C" int32_t anyop_fused_add_rms_norm_cpu(const FusedAddRmsNormArgs* args, AnyopCall* call) {
  return anyop::cpu::RunNorm(args, call, args->residual, args->sum, nullptr);
}
