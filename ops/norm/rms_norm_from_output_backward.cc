// SPDX-License-Identifier: Apache-2.0
// Gradient of rms_norm_from_output on the CPU: a row of the result and of its gradient is read from
// memory once, summed and mapped in the cache, in float32. What was normalised is the result
// divided by the factor: sum_d(grad * factor * normal) needs no division.
#include "anyop/ops/rms_norm_from_output_backward.h"

#include "anyop/cpu/columns.h"

namespace anyop::cpu {
namespace {

struct Work {
  const RmsNormFromOutputBackwardArgs& args;
  const ColumnSums& sums;
};

inline void Differentiate(const Work& work, int64_t begin, int64_t end) {
  const RmsNormFromOutputBackwardArgs& args = work.args;
  const int64_t D = args.D;
  const Rows out(args.out), grad_out(args.grad_out), grad_x(args.grad_x ? args.grad_x : args.out);
  RowReader<float> weight(args.weight, 1, D);
  const float offset = static_cast<float>(args.weight_offset);
  const auto normal = [=](float v, float w) { return w + offset == 0 ? 0 : v / (w + offset); };
  for (int64_t row = begin; row < end; ++row) {
    RowReader<float> in(out.dtype(), out[row], D), grad(grad_out.dtype(), grad_out[row], D);
    const float scale = static_cast<const float*>(args.rstd->data)[row];
    float* sum = args.grad_weight ? work.sums.At<float>(row) : nullptr;
    RowWriter<float> to(grad_x.dtype(), grad_x[row]);
    const auto product = [](float g, float v) { return g * v; };
    const float share = static_cast<float>(Sum(args.grad_x ? D : 0, product, grad, in) / D);
    const auto result = [=](float g, float w, float v) {
      return scale * (g * (w + offset) - v * share);
    };
    ForBlocks(D, [&](int64_t at, int64_t n) {
      const float *g = grad.Read(at, n), *w = weight.Read(at, n);
      float normals[kBlock];
      Apply(n, normal, normals, in.Read(at, n), w);
      if (args.grad_x) {
        Apply(n, result, to.Target(at), g, w, normals);
        to.Write(at, n);
      }
      const auto add = [](float s, float g, float v) { return s + g * v; };
      if (sum) Apply(n, add, sum + at, sum + at, g, normals);
    });
  }
}

ANYOP_CPU_CLONES void Run(const Work* work, int64_t begin, int64_t end) {
  Differentiate(*work, begin, end);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_rms_norm_from_output_backward_cpu(
    const RmsNormFromOutputBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  const ColumnSums sums(call, kAnyopFloat32, args->rows, args->grad_weight ? args->D : 0);
  if (!sums.has_memory()) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  const Work work = {*args, sums};
  sums.RunParts(call, &work, args->rows, args->D, Run);
  if (args->grad_weight) sums.Write(call, 0, args->grad_weight);
  return kAnyopOk;
}
