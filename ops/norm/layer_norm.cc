// SPDX-License-Identifier: Apache-2.0
// layer_norm and its relatives on the CPU: a row is read from memory once, then from the cache, in
// float32 (float64 where a tensor is). The fused ones first write the sum of two rows, and
// normalise what they have written.
#include "anyop/ops/layer_norm.h"

#include "anyop/cpu/rows.h"
#include "anyop/ops/fused_add_layer_norm.h"
#include "anyop/ops/layer_norm_from_output.h"
#include "anyop/ops/native_layer_norm.h"

namespace anyop::cpu {
namespace {

// residual and sum, mean, or rstd, are nullptr where an operator has none.
struct Work {
  const AnyopTensor *x, *residual, *weight, *bias, *out, *sum;
  float *mean, *rstd;
  double eps, weight_offset;
  int64_t D;
};

template <typename Wide>
inline void Normalize(const Work* work, int64_t begin, int64_t end) {
  const int64_t D = work->D;
  const Rows x(work->x), out(work->out), residual = work->residual ? Rows(work->residual) : x,
                                         rows = work->sum ? Rows(work->sum) : x;
  RowReader<Wide> weight(work->weight, 1, D), bias(work->bias, 0, D);
  const Wide offset = static_cast<Wide>(work->weight_offset);
  for (int64_t row = begin; row < end; ++row) {
    if (work->sum) {
      RowReader<Wide> a(x.dtype(), x[row], D), b(residual.dtype(), residual[row], D);
      RowWriter<Wide> to(rows.dtype(), rows[row]);
      MapRow(D, [](Wide v, Wide r) { return v + r; }, to, a, b);
    }
    RowReader<Wide> in(rows.dtype(), rows[row], D);
    const Moments moments = MomentsOf(D, in);
    const double rstd = 1 / __builtin_sqrt((D > 0 ? moments.squares / D : 0) + work->eps);
    if (work->mean) work->mean[row] = static_cast<float>(moments.mean);
    if (work->rstd) work->rstd[row] = static_cast<float>(rstd);
    const Wide mean = static_cast<Wide>(moments.mean), scale = static_cast<Wide>(rstd);
    RowWriter<Wide> to(out.dtype(), out[row]);
    const auto result = [=](Wide v, Wide w, Wide b) {
      return (v - mean) * scale * (w + offset) + b;
    };
    MapRow(D, result, to, in, weight, bias);
  }
}

ANYOP_CPU_CLONES void Run(const Work* work, int64_t begin, int64_t end) {
  WithFloat(WidestOf(work->x, work->out),
            [&](auto wide) { Normalize<decltype(wide)>(work, begin, end); });
}

float* FloatsOf(const AnyopTensor* tensor) {
  return tensor ? static_cast<float*>(tensor->data) : nullptr;
}

template <typename Args>
int32_t RunNorm(const Args* args, AnyopCall* call, const AnyopTensor* residual,
                const AnyopTensor* sum, const AnyopTensor* mean, const AnyopTensor* rstd) {
  const Work work = {args->x, residual,       args->weight,   args->bias, args->out,
                     sum,     FloatsOf(mean), FloatsOf(rstd), args->eps,  args->weight_offset,
                     args->D};
  return RunRows(call, &work, args->rows, args->D, Run);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_layer_norm_cpu(const LayerNormArgs* args, AnyopCall* call) {
  return anyop::cpu::RunNorm(args, call, nullptr, nullptr, nullptr, nullptr);
}
extern "C" int32_t anyop_native_layer_norm_cpu(const NativeLayerNormArgs* args, AnyopCall* call) {
  return anyop::cpu::RunNorm(args, call, nullptr, nullptr, args->mean, args->rstd);
}
extern "C" int32_t anyop_layer_norm_from_output_cpu(const LayerNormFromOutputArgs* args,
                                                    AnyopCall* call) {
  return anyop::cpu::RunNorm(args, call, nullptr, nullptr, nullptr, args->rstd);
}
extern "C" int32_t anyop_fused_add_layer_norm_cpu(const FusedAddLayerNormArgs* args,
                                                  AnyopCall* call) {
  return anyop::cpu::RunNorm(args, call, args->residual, args->sum, nullptr, nullptr);
}
