// SPDX-License-Identifier: Apache-2.0
// Gradient of l2_normalize on CUDA: both rows are read once, sums are float32 (float64). Who does
// what: anyop/cuda/row.h.
#include "anyop/cuda/row.h"
#include "anyop/ops/l2_normalize_backward.h"

namespace anyop::cuda {
namespace {

template <typename T, bool kAny>
struct NormalizeGradient {
  using W = Wide<T>;
  RowsAt<kAny> grad_out, x, grad_x;
  W eps;

  template <typename Row>
  __device__ void operator()(Row& row) const {
    const auto g = row.Read(grad_out);
    const auto v = row.Read(x);
    W squares, products;
    row.TwoSums(
        &squares, &products, [](W sum, W, W v) { return MulAdd(v, v, sum); },
        [](W sum, W g, W v) { return MulAdd(g, v, sum); }, g, v);
    const W norm = sqrt(squares);
    const bool flat = norm < eps;  // there the result is x / eps
    const W scale = 1 / (flat ? eps : norm), slope = flat ? W(0) : products * scale * scale;
    row.Write(grad_x, [=](W g, W v) { return MulAdd(-v, slope, g) * scale; }, g, v);
  }
};

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_l2_normalize_backward_cuda(const L2NormalizeBackwardArgs* args,
                                                    AnyopCall* call) {
  using namespace anyop::cuda;
  return WithFloating(AnyopDtypeOf(args->x), [&](auto zero) {
    using T = decltype(zero);
    return RunRows<T>(call, {args->rows, args->D}, {args->grad_out, args->x}, {args->grad_x},
                      [&](auto of, auto any) {
                        return NormalizeGradient<decltype(of), any>{
                            PlaceRows<any>(args->grad_out), PlaceRows<any>(args->x),
                            PlaceRows<any>(args->grad_x), EpsilonOf<T>(args->eps)};
                      });
  });
}
