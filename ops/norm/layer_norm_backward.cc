// SPDX-License-Identifier: Apache-2.0
// Gradients of layer_norm and fused_add_layer_norm on the CPU: a row of each tensor is read from
// memory once, summed and mapped in the cache, in float32 (float64 where a tensor is).
#include "anyop/ops/layer_norm_backward.h"

#include "anyop/cpu_columns.h"
#include "anyop/ops/fused_add_layer_norm_backward.h"

namespace anyop::cpu {
namespace {

// The tensors that may be absent are nullptr: a gradient that is 0, or one that is not wanted.
struct Work {
  const AnyopTensor *grad_out, *grad_sum, *x, *weight, *grad_x, *grad_weight, *grad_bias;
  double eps, weight_offset;
  int64_t D;
  AnyopDtype wide;
  const ColumnSums& sums;  // of grad_weight, then of grad_bias
};

// What the gradient needs of a row: its moments, and sums of grad * factor and of that times
// (x - mean). A block is summed around its own mean while it lies in the cache.
template <typename Wide>
struct RowSums {
  Moments of_x;
  double product = 0, moment = 0;

  RowSums(int64_t D, Wide offset, RowReader<Wide>& in, RowReader<Wide>& grad,
          RowReader<Wide>& weight) {
    ForBlocks(D, [&](int64_t at, int64_t n) {
      const Wide *x = in.Read(at, n), *g = grad.Read(at, n), *w = weight.Read(at, n);
      const Wide mean = MeanOfBlock(n, x);
      const auto term = [=](Wide g, Wide w) { return g * (w + offset); };
      const auto times = [=](Wide g, Wide w, Wide v) { return g * (w + offset) * (v - mean); };
      const double before = of_x.mean, sum = SumBlock(n, term, g, w);
      of_x.Join(at, n, mean, SquaresOfBlock(n, x, mean));
      moment += SumBlock(n, times, g, w, x) + sum * (mean - of_x.mean);
      moment += product * (before - of_x.mean);
      product += sum;
    });
  }
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
    const bool sums = work.grad_weight || work.grad_bias;
    Wide* sum = sums ? work.sums.At<Wide>(row) : nullptr;
    RowReader<Wide> more(grad_sum.dtype(), grad_sum[row], work.grad_sum ? D : 0);
    RowWriter<Wide> to(grad_x.dtype(), grad_x[row]);
    if (!work.grad_out) {
      if (work.grad_x) MapRow(D, [](Wide v) { return v; }, to, work.grad_sum ? more : zeros);
      continue;
    }
    RowReader<Wide> in(x.dtype(), x[row], D), grad(grad_out.dtype(), grad_out[row], D);
    const RowSums<Wide> of(D, offset, in, grad, weight);
    const double rstd = 1 / __builtin_sqrt((D > 0 ? of.of_x.squares / D : 0) + work.eps);
    const Wide mean = static_cast<Wide>(of.of_x.mean), scale = static_cast<Wide>(rstd);
    const Wide shift = static_cast<Wide>(of.product / D);
    const Wide share = static_cast<Wide>(of.moment / D * rstd * rstd);
    const auto result = [=](Wide g, Wide w, Wide v) {
      return scale * (g * (w + offset) - shift - (v - mean) * share);
    };
    const auto added = [=](Wide g, Wide w, Wide v, Wide s) { return result(g, w, v) + s; };
    const auto normal = [=](Wide s, Wide g, Wide v) { return s + g * ((v - mean) * scale); };
    ForBlocks(D, [&](int64_t at, int64_t n) {
      const Wide *g = grad.Read(at, n), *v = in.Read(at, n), *w = weight.Read(at, n);
      if (work.grad_x) {
        Wide* out = to.Target(at);
        work.grad_sum ? Apply(n, added, out, g, w, v, more.Read(at, n))
                      : Apply(n, result, out, g, w, v);
        to.Write(at, n);
      }
      if (!sums) return;
      Wide* part = sum + at;
      if (work.grad_weight) Apply(n, normal, part, part, g, v);
      if (work.grad_weight) part += D;
      if (work.grad_bias) Apply(n, [](Wide s, Wide g) { return s + g; }, part, part, g);
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
  const int64_t wanted = (args->grad_weight ? 1 : 0) + (args->grad_bias ? 1 : 0);
  const ColumnSums sums(call, wide, args->rows, wanted * args->D);
  if (!sums.has_memory()) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  const Work work = {args->grad_out,  grad_sum,     x,
                     args->weight,    args->grad_x, args->grad_weight,
                     args->grad_bias, args->eps,    args->weight_offset,
                     args->D,         wide,         sums};
  sums.RunParts(call, &work, args->rows, args->D, Run);
  if (args->grad_weight) sums.Write(call, 0, args->grad_weight);
  if (args->grad_bias) sums.Write(call, args->grad_weight ? args->D : 0, args->grad_bias);
  return kAnyopOk;
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_layer_norm_backward_cpu(const LayerNormBackwardArgs* args,
                                                 AnyopCall* call) {
  return anyop::cpu::RunGradient(args, call, nullptr, args->x);
}
extern "C" int32_t anyop_fused_add_layer_norm_backward_cpu(
    const FusedAddLayerNormBackwardArgs* args, AnyopCall* call) {
  return anyop::cpu::RunGradient(args, call, args->grad_sum, args->sum);
}
