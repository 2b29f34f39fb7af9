// SPDX-License-Identifier: Apache-2.0
// Gradient of rms_norm on the CPU: a row of x and of grad_out is read from memory once, summed and
// mapped in the cache, in float32 (float64).
#include "anyop/ops/rms_norm_backward.h"

#include "anyop/cpu_columns.h"

namespace anyop::cpu {
namespace {

struct Work {
  const RmsNormBackwardArgs& args;
  const ColumnSums& sums;
};

template <typename Wide>
inline void Differentiate(const Work& work, int64_t begin, int64_t end) {
  const RmsNormBackwardArgs& args = work.args;
  const int64_t D = args.D;
  const Rows x(args.x), grad_out(args.grad_out), grad_x(args.grad_x ? args.grad_x : args.x);
  RowReader<Wide> weight(args.weight, 1, D);
  for (int64_t row = begin; row < end; ++row) {
    RowReader<Wide> in(x.dtype(), x[row], D), grad(grad_out.dtype(), grad_out[row], D);
    const double mean = Sum(D, [](Wide v) { return v * v; }, in) / D;
    const double rstd = 1 / __builtin_sqrt(mean + args.eps);
    const Wide scale = static_cast<Wide>(rstd);
    if (args.grad_x) {
      const auto product = [](Wide g, Wide v, Wide w) { return g * w * v; };
      const double dot = Sum(D, product, grad, in, weight) / D;
      const Wide share = static_cast<Wide>(dot * rstd * rstd);
      RowWriter<Wide> to(grad_x.dtype(), grad_x[row]);
      const auto result = [=](Wide g, Wide v, Wide w) { return scale * (g * w - v * share); };
      MapRow(D, result, to, grad, in, weight);
    }
    if (args.grad_weight) {
      Wide* sum = work.sums.At<Wide>(row);
      ForBlocks(D, [&](int64_t at, int64_t n) {
        const auto add = [=](Wide s, Wide g, Wide v) { return s + g * (v * scale); };
        Apply(n, add, sum + at, sum + at, grad.Read(at, n), in.Read(at, n));
      });
    }
  }
}

ANYOP_CPU_CLONES void Run(const Work* work, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(work->args.x),
            [&](auto wide) { Differentiate<decltype(wide)>(*work, begin, end); });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_rms_norm_backward_cpu(const RmsNormBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  const ColumnSums sums(call, AnyopDtypeOf(args->x), args->rows, args->grad_weight ? args->D : 0);
  if (!sums.has_memory()) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  const Work work = {*args, sums};
  sums.RunParts(call, &work, args->rows, args->D, Run);
  if (args->grad_weight) sums.Write(call, 0, args->grad_weight);
  return kAnyopOk;
}
