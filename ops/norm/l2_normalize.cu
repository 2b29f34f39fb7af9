// SPDX-License-Identifier: Apache-2.0
// l2_normalize on CUDA: a row is read once, sums are float32 (float64). Who does what:
// anyop/cuda/row.h.
#include "anyop/cuda/row.h"
#include "anyop/ops/l2_normalize.h"

namespace anyop::cuda {
namespace {

template <typename T, bool kAny>
struct Normalize {
  using W = Wide<T>;
  RowsAt<kAny> x, out;
  W eps;

  template <typename Row>
  __device__ void operator()(Row& row) const {
    const auto v = row.Read(x);
    const W squares = row.Sum([](W sum, W v) { return MulAdd(v, v, sum); }, v);
    const W norm = sqrt(squares), scale = 1 / (norm < eps ? eps : norm);  // NaN stays
    row.Write(out, [=](W v) { return v * scale; }, v);
  }
};

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_l2_normalize_cuda(const L2NormalizeArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return WithFloating(AnyopDtypeOf(args->x), [&](auto zero) {
    using T = decltype(zero);
    return RunRows<T>(call, {args->rows, args->D}, {args->x}, {args->out}, [&](auto of, auto any) {
      return Normalize<decltype(of), any>{PlaceRows<any>(args->x), PlaceRows<any>(args->out),
                                          EpsilonOf<T>(args->eps)};
    });
  });
}
