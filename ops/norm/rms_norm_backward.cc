// SPDX-License-Identifier: Apache-2.0
// Gradients of rms_norm and fused_add_rms_norm on the CPU: a row of each tensor is read from memory
// once, summed and mapped in the cache, in float32 (float64 where a tensor is).
#include "anyop/ops/rms_norm_backward.h"

#include "anyop/cpu/columns.h"
#include "anyop/ops/fused_add_rms_norm_backward.h"

namespace anyop::cpu {
namespace {

// The tensors that may be absent are nullptr: a gradient that is 0, or one that is not wanted.
struct Work {
  const AnyopTensor *grad_out, *grad_sum, *x, *weight, *grad_x, *grad_weight;
  double eps, weight_offset;
  int64_t D;
  AnyopDtype wide;
  const ColumnSums& sums;
};

template <typename Wide>
inline void Differentiate(const Work& work, int64_t begin, int64_t end) {
  const int64_t D = work.D;
  const AnyopTensor* any = work.x;  // stands for what is absent
  const Rows x(work.x), grad_out(work.grad_out ? work.grad_out : any),
      grad_sum(work.grad_sum ? work.grad_sum : any), grad_x(work.grad_x ? work.grad_x : any);
  RowReader<Wide> weight(work.weight, 1, D), zeros(nullptr, 0, D);
  const Wide offset = static_cast<Wide>(work.weight_offset);
  for (int64_t row = begin; row < end; ++row) {
    Wide* sum = work.grad_weight ? work.sums.At<Wide>(row) : nullptr;
    RowReader<Wide> more(grad_sum.dtype(), grad_sum[row], work.grad_sum ? D : 0);
    RowWriter<Wide> to(grad_x.dtype(), grad_x[row]);
    if (!work.grad_out) {
      if (work.grad_x) MapRow(D, [](Wide v) { return v; }, to, work.grad_sum ? more : zeros);
      continue;
    }
    RowReader<Wide> in(x.dtype(), x[row], D), grad(grad_out.dtype(), grad_out[row], D);
    double squares = 0, dot = 0;
    const auto product = [=](Wide g, Wide v, Wide w) { return g * (w + offset) * v; };
    ForBlocks(D, [&](int64_t at, int64_t n) {
      const Wide* v = in.Read(at, n);
      squares += SumBlock(n, [](Wide v) { return v * v; }, v);
      if (work.grad_x) dot += SumBlock(n, product, grad.Read(at, n), v, weight.Read(at, n));
    });
    const double rstd = 1 / __builtin_sqrt(squares / D + work.eps);
    const Wide scale = static_cast<Wide>(rstd), share = static_cast<Wide>(dot / D * rstd * rstd);
    const auto result = [=](Wide g, Wide v, Wide w) {
      return scale * (g * (w + offset) - v * share);
    };
    const auto added = [=](Wide g, Wide v, Wide w, Wide s) { return result(g, v, w) + s; };
    const auto add = [=](Wide s, Wide g, Wide v) { return s + g * (v * scale); };
    ForBlocks(D, [&](int64_t at, int64_t n) {
      const Wide *g = grad.Read(at, n), *v = in.Read(at, n), *w = weight.Read(at, n);
      if (work.grad_x) {
        Wide* out = to.Target(at);
        work.grad_sum ? Apply(n, added, out, g, v, w, more.Read(at, n))
                      : Apply(n, result, out, g, v, w);
        to.Write(at, n);
      }
      if (sum) Apply(n, add, sum + at, sum + at, g, v);
    });
  }
}

ANYOP_CPU_CLONES void Run(const Work* work, int64_t begin, int64_t end) {
  WithFloat(work->wide, [&](auto wide) { Differentiate<decltype(wide)>(*work, begin, end); });
}

template <typename Args>
int32_t RunGradient(const Args* args, AnyopCall* call, const AnyopTensor* grad_sum,
                    const AnyopTensor* x) {
  const AnyopDtype wide = WidestOf(args->grad_out, grad_sum, x, args->weight);
  const ColumnSums sums(call, wide, args->rows, args->grad_weight ? args->D : 0);
  if (!sums.has_memory()) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  const Work work = {
      args->grad_out,      grad_sum, x,    args->weight, args->grad_x, args->grad_weight, args->eps,
      args->weight_offset, args->D,  wide, sums};
  sums.RunParts(call, &work, args->rows, args->D, Run);
  if (args->grad_weight) sums.Write(call, 0, args->grad_weight);
  return kAnyopOk;
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_rms_norm_backward_cpu(const RmsNormBackwardArgs* args, AnyopCall* call) {
  return anyop::cpu::RunGradient(args, call, nullptr, args->x);
}
extern "C" int32_t anyop_fused_add_rms_norm_backward_cpu(const FusedAddRmsNormBackwardArgs* args,
                                                         AnyopCall* call) {
  return anyop::cpu::RunGradient(args, call, args->grad_sum, args->sum);
}
