// SPDX-License-Identifier: Apache-2.0
// rms_norm on CUDA: a row is read once, sums are float32 (float64). 2 s bytes are moved an element
// of size s. Who does what: anyop/cuda_row.h.
#include "anyop/cuda_row.h"
#include "anyop/ops/rms_norm.h"

namespace anyop::cuda {
namespace {

template <typename T, bool kAny>
struct RmsNorm {
  using W = Wide<T>;
  RowsAt<kAny> x, out;
  ColumnsAt<T> weight;
  W eps, inverse_D;

  template <typename Row>
  __device__ void operator()(Row& row) const {
    const auto v = row.Read(x);
    const auto w = row.Columns(weight);
    const W squares = row.Sum([](W sum, W v) { return MulAdd(v, v, sum); }, v);
    const W scale = ReciprocalRoot(MulAdd(squares, inverse_D, eps));
    row.Write(out, [=](W v, W w) { return v * (scale * w); }, v, w);
  }
};

template <typename T>
int32_t Run(const RmsNormArgs* args, AnyopCall* call) {
  return RunRows<T>(call, {args->rows, args->D}, {args->x}, {args->out}, [&](auto any) {
    return RmsNorm<T, any>{PlaceRows<any>(args->x), PlaceRows<any>(args->out),
                           PlaceColumns<T>(args->weight, 0, 1), EpsilonOf<T>(args->eps),
                           1 / static_cast<Wide<T>>(args->D)};
  });
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_rms_norm_cuda(const RmsNormArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  const AnyopDtype dtype = AnyopDtypeOf(args->x);
  if (!args->weight || AnyopDtypeOf(args->weight) != dtype || AnyopDtypeOf(args->out) != dtype ||
      args->weight_offset != 0)
    return call->fail(call, kAnyopDeclined, "it takes one dtype, a weight and no weight_offset");
  return WithFloating(dtype, [&](auto zero) { return Run<decltype(zero)>(args, call); });
}
