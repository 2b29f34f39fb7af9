// SPDX-License-Identifier: Apache-2.0
// Gradient of layer_norm on the CPU: a row of x and of grad_out is read from memory once, summed
// and mapped in the cache, in float32 (float64).
#include "anyop/ops/layer_norm_backward.h"

#include "anyop/cpu_columns.h"

namespace anyop::cpu {
namespace {

struct Work {
  const LayerNormBackwardArgs& args;
  const ColumnSums& sums;  // of grad_weight, then of grad_bias
};

// Adds one row to the sums of grad_weight and grad_bias that are wanted.
template <typename Wide>
inline void AddRow(const Work& work, int64_t row, Wide mean, Wide scale, RowReader<Wide>& in,
                   RowReader<Wide>& grad) {
  Wide* sum = work.sums.At<Wide>(row);
  const int64_t D = work.args.D;
  ForBlocks(D, [&](int64_t at, int64_t n) {
    const Wide *g = grad.Read(at, n), *v = in.Read(at, n);
    Wide* to = sum + at;
    if (work.args.grad_weight) {
      Apply(n, [=](Wide s, Wide g, Wide v) { return s + g * ((v - mean) * scale); }, to, to, g, v);
      to += D;
    }
    if (work.args.grad_bias) Apply(n, [](Wide s, Wide g) { return s + g; }, to, to, g);
  });
}

template <typename Wide>
inline void Differentiate(const Work& work, int64_t begin, int64_t end) {
  const LayerNormBackwardArgs& args = work.args;
  const int64_t D = args.D;
  const Rows x(args.x), grad_out(args.grad_out), grad_x(args.grad_x ? args.grad_x : args.x);
  RowReader<Wide> weight(args.weight, 1, D);
  for (int64_t row = begin; row < end; ++row) {
    RowReader<Wide> in(x.dtype(), x[row], D), grad(grad_out.dtype(), grad_out[row], D);
    const Moments moments = MomentsOf(D, in);
    const double rstd = 1 / __builtin_sqrt((D > 0 ? moments.squares / D : 0) + args.eps);
    const Wide mean = static_cast<Wide>(moments.mean), scale = static_cast<Wide>(rstd);
    if (args.grad_x) {
      const auto product = [](Wide g, Wide w) { return g * w; };
      const auto moment = [mean](Wide g, Wide w, Wide v) { return g * w * (v - mean); };
      const Wide shift = static_cast<Wide>(Sum(D, product, grad, weight) / D);
      const Wide share = static_cast<Wide>(Sum(D, moment, grad, weight, in) / D * rstd * rstd);
      RowWriter<Wide> to(grad_x.dtype(), grad_x[row]);
      const auto result = [=](Wide g, Wide w, Wide v) {
        return scale * (g * w - shift - (v - mean) * share);
      };
      MapRow(D, result, to, grad, weight, in);
    }
    if (args.grad_weight || args.grad_bias) AddRow(work, row, mean, scale, in, grad);
  }
}

ANYOP_CPU_CLONES void Run(const Work* work, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(work->args.x),
            [&](auto wide) { Differentiate<decltype(wide)>(*work, begin, end); });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_layer_norm_backward_cpu(const LayerNormBackwardArgs* args,
                                                 AnyopCall* call) {
  using namespace anyop::cpu;
  const int64_t wanted = (args->grad_weight ? 1 : 0) + (args->grad_bias ? 1 : 0);
  const ColumnSums sums(call, AnyopDtypeOf(args->x), args->rows, wanted * args->D);
  if (!sums.has_memory()) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  const Work work = {*args, sums};
  sums.RunParts(call, &work, args->rows, args->D, Run);
  if (args->grad_weight) sums.Write(call, 0, args->grad_weight);
  if (args->grad_bias) sums.Write(call, args->grad_weight ? args->D : 0, args->grad_bias);
  return kAnyopOk;
}
