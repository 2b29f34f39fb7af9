// SPDX-License-Identifier: Apache-2.0
// Gradient of layer_norm_from_output on the CPU: a row of the result and of its gradient is read
// from memory once, summed and mapped in the cache, in float32. What was normalised is the result
// less the bias, divided by the factor: sum_d(grad * factor * normal) needs no division.
#include "anyop/ops/layer_norm_from_output_backward.h"

#include "anyop/cpu_columns.h"

namespace anyop::cpu {
namespace {

struct Work {
  const LayerNormFromOutputBackwardArgs& args;
  const ColumnSums& sums;  // of grad_weight, then of grad_bias
};

inline void Differentiate(const Work& work, int64_t begin, int64_t end) {
  const LayerNormFromOutputBackwardArgs& args = work.args;
  const int64_t D = args.D;
  const Rows out(args.out), grad_out(args.grad_out), grad_x(args.grad_x ? args.grad_x : args.out);
  RowReader<float> weight(args.weight, 1, D), bias(args.bias, 0, D);
  const float offset = static_cast<float>(args.weight_offset);
  const auto normal = [=](float v, float w, float b) {
    return w + offset == 0 ? 0 : (v - b) / (w + offset);
  };
  for (int64_t row = begin; row < end; ++row) {
    RowReader<float> in(out.dtype(), out[row], D), grad(grad_out.dtype(), grad_out[row], D);
    const float scale = static_cast<const float*>(args.rstd->data)[row];
    if (args.grad_x) {
      const auto product = [=](float g, float w) { return g * (w + offset); };
      const auto moment = [](float g, float v, float b) { return g * (v - b); };
      const float shift = static_cast<float>(Sum(D, product, grad, weight) / D);
      const float share = static_cast<float>(Sum(D, moment, grad, in, bias) / D);
      RowWriter<float> to(grad_x.dtype(), grad_x[row]);
      const auto result = [=](float g, float v, float w, float b) {
        return scale * (g * (w + offset) - shift - normal(v, w, b) * share);
      };
      MapRow(D, result, to, grad, in, weight, bias);
    }
    if (!args.grad_weight && !args.grad_bias) continue;
    float* sum = work.sums.At<float>(row);
    ForBlocks(D, [&](int64_t at, int64_t n) {
      const float* g = grad.Read(at, n);
      float* to = sum + at;
      if (args.grad_weight) {
        const auto add = [=](float s, float g, float v, float w, float b) {
          return s + g * normal(v, w, b);
        };
        Apply(n, add, to, to, g, in.Read(at, n), weight.Read(at, n), bias.Read(at, n));
        to += D;
      }
      if (args.grad_bias) Apply(n, [](float s, float g) { return s + g; }, to, to, g);
    });
  }
}

ANYOP_CPU_CLONES void Run(const Work* work, int64_t begin, int64_t end) {
  Differentiate(*work, begin, end);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_layer_norm_from_output_backward_cpu(
    const LayerNormFromOutputBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  const int64_t wanted = (args->grad_weight ? 1 : 0) + (args->grad_bias ? 1 : 0);
  const ColumnSums sums(call, kAnyopFloat32, args->rows, wanted * args->D);
  if (!sums.has_memory()) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  const Work work = {*args, sums};
  sums.RunParts(call, &work, args->rows, args->D, Run);
  if (args->grad_weight) sums.Write(call, 0, args->grad_weight);
  if (args->grad_bias) sums.Write(call, args->grad_weight ? args->D : 0, args->grad_bias);
  return kAnyopOk;
}
