// SPDX-License-Identifier: Apache-2.0
// layer_norm and native_layer_norm on the CPU: a row is read from memory once, then from the cache,
// in float32 (float64 for float64).
#include "anyop/ops/layer_norm.h"

#include "anyop/cpu_rows.h"
#include "anyop/ops/native_layer_norm.h"

namespace anyop::cpu {
namespace {

// Of both operators; mean and rstd are nullptr for layer_norm.
struct Work {
  const AnyopTensor* x;
  const AnyopTensor* weight;
  const AnyopTensor* bias;
  const AnyopTensor* out;
  float* mean;
  float* rstd;
  double eps;
  int64_t D;
};

template <typename Wide>
inline void Normalize(const Work* work, int64_t begin, int64_t end) {
  const int64_t D = work->D;
  const Rows x(work->x), out(work->out);
  RowReader<Wide> weight(work->weight, 1, D), bias(work->bias, 0, D);
  for (int64_t row = begin; row < end; ++row) {
    RowReader<Wide> in(x.dtype(), x[row], D);
    const Moments moments = MomentsOf(D, in);
    const double rstd = 1 / __builtin_sqrt((D > 0 ? moments.squares / D : 0) + work->eps);
    if (work->mean) {
      work->mean[row] = static_cast<float>(moments.mean);
      work->rstd[row] = static_cast<float>(rstd);
    }
    const Wide mean = static_cast<Wide>(moments.mean), scale = static_cast<Wide>(rstd);
    RowWriter<Wide> to(out.dtype(), out[row]);
    const auto result = [=](Wide v, Wide w, Wide b) { return (v - mean) * scale * w + b; };
    MapRow(D, result, to, in, weight, bias);
  }
}

ANYOP_CPU_CLONES void Run(const Work* work, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(work->x), [&](auto wide) { Normalize<decltype(wide)>(work, begin, end); });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_layer_norm_cpu(const LayerNormArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  const Work work = {args->x, args->weight, args->bias, args->out,
                     nullptr, nullptr,      args->eps,  args->D};
  return RunRows(call, &work, args->rows, args->D, Run);
}

extern "C" int32_t anyop_native_layer_norm_cpu(const NativeLayerNormArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  float* mean = static_cast<float*>(args->mean->data);
  float* rstd = static_cast<float*>(args->rstd->data);
  const Work work = {args->x, args->weight, args->bias, args->out, mean, rstd, args->eps, args->D};
  return RunRows(call, &work, args->rows, args->D, Run);
}
