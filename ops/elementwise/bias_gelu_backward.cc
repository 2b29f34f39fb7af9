// SPDX-License-Identifier: Apache-2.0
// Gradient of bias_gelu on the CPU: a row of x and of grad_out is read from memory once; the sum of
// the bias in fixed parts of the rows, in float32 (float64).
#include "anyop/ops/bias_gelu_backward.h"

#include "anyop/cpu/columns.h"
#include "gelu_forms.h"

namespace anyop::cpu {
namespace {

struct Work {
  const BiasGeluBackwardArgs& args;
  const ColumnSums& sums;
};

template <typename Gelu>
inline void Differentiate(const Work& work, int64_t begin, int64_t end) {
  const BiasGeluBackwardArgs& args = work.args;
  const int64_t D = args.D;
  const Rows x(args.x), grad_out(args.grad_out), grad_x(args.grad_x ? args.grad_x : args.x);
  WithFloat(x.dtype(), [&](auto wide) {
    using Wide = decltype(wide);
    RowReader<Wide> bias(args.bias, 0, D);
    for (int64_t row = begin; row < end; ++row) {
      RowReader<Wide> in(x.dtype(), x[row], D), grad(x.dtype(), grad_out[row], D);
      RowWriter<Wide> to(x.dtype(), grad_x[row]);
      Wide* sum = args.grad_bias ? work.sums.At<Wide>(row) : nullptr;
      ForBlocks(D, [&](int64_t at, int64_t n) {
        Wide found[kBlock];
        const auto slope = [](Wide g, Wide v, Wide b) { return g * Gelu::Slope(v + b); };
        Apply(n, slope, found, grad.Read(at, n), in.Read(at, n), bias.Read(at, n));
        if (sum) Apply(n, [](Wide s, Wide v) { return s + v; }, sum + at, sum + at, found);
        if (!args.grad_x) return;
        __builtin_memcpy(to.Target(at), found, n * sizeof(Wide));
        to.Write(at, n);
      });
    }
  });
}
ANYOP_CPU_CLONES void RunErf(const Work* work, int64_t begin, int64_t end) {
  Differentiate<GeluErf>(*work, begin, end);
}
ANYOP_CPU_CLONES void RunTanh(const Work* work, int64_t begin, int64_t end) {
  Differentiate<GeluTanh>(*work, begin, end);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_bias_gelu_backward_cpu(const BiasGeluBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  const ColumnSums sums(call, AnyopDtypeOf(args->x), args->rows, args->grad_bias ? args->D : 0);
  if (!sums.has_memory()) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  const Work work = {*args, sums};
  const auto run = [&](auto rows) {
    sums.RunParts(call, &work, args->rows, args->D, rows);
    if (args->grad_bias) sums.Write(call, 0, args->grad_bias);
    return kAnyopOk;
  };
  return WithGelu(
      call, args->approximate.data, [&] { return run(RunErf); }, [&] { return run(RunTanh); });
}
