// SPDX-License-Identifier: Apache-2.0
// Gradient of layer_norm_from_output on the CPU: a row of the result and of its gradient is read
// from memory once, summed and mapped in the cache, in float32. What was normalised is the result
// less the bias, divided by the factor: sum_d(grad * factor * normal) needs no division.
#include "anyop/ops/layer_norm_from_output_backward.h"

#include "anyop/cpu/columns.h"

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
    float* sum = args.grad_weight || args.grad_bias ? work.sums.At<float>(row) : nullptr;
    RowWriter<float> to(grad_x.dtype(), grad_x[row]);
    const auto product = [=](float g, float w) { return g * (w + offset); };
    const auto moment = [](float g, float v, float b) { return g * (v - b); };
    double products = 0, moments = 0;
    ForBlocks(args.grad_x ? D : 0, [&](int64_t at, int64_t n) {
      const float* g = grad.Read(at, n);
      products += SumBlock(n, product, g, weight.Read(at, n));
      moments += SumBlock(n, moment, g, in.Read(at, n), bias.Read(at, n));
    });
    const float shift = static_cast<float>(products / D), share = static_cast<float>(moments / D);
    const auto result = [=](float g, float w, float v) {
      return scale * (g * (w + offset) - shift - v * share);
    };
    ForBlocks(D, [&](int64_t at, int64_t n) {
      const float *g = grad.Read(at, n), *w = weight.Read(at, n);
      float normals[kBlock];
      Apply(n, normal, normals, in.Read(at, n), w, bias.Read(at, n));
      if (args.grad_x) {
        Apply(n, result, to.Target(at), g, w, normals);
        to.Write(at, n);
      }
      if (!sum) return;
      float* part = sum + at;
      const auto times = [](float s, float g, float v) { return s + g * v; };
      if (args.grad_weight) Apply(n, times, part, part, g, normals);
      if (args.grad_weight) part += D;
      if (args.grad_bias) Apply(n, [](float s, float g) { return s + g; }, part, part, g);
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
