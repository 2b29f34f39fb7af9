// SPDX-License-Identifier: Apache-2.0
// Gradient of focal_loss on CUDA: rows times one number, which lies on the device.
#include "anyop/cuda/row.h"
#include "anyop/ops/focal_loss_backward.h"

namespace anyop::cuda {
namespace {

template <typename T, bool kAny>
struct FocalGradient {
  using W = Wide<T>;
  RowsAt<kAny> partial, grad_x;
  const W *grad_loss, *num_positives;

  template <typename Row>
  __device__ void operator()(Row& row) const {
    const W factor = *grad_loss / *num_positives;
    row.Write(grad_x, [=](W v) { return v * factor; }, row.Read(partial));
  }
};

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_focal_loss_backward_cuda(const FocalLossBackwardArgs* args,
                                                  AnyopCall* call) {
  using namespace anyop::cuda;
  return WithFloating(AnyopDtypeOf(args->partial), [&](auto zero) {
    using T = decltype(zero);
    using W = Wide<T>;
    return RunRows<T>(
        call, {args->rows, args->V}, {args->partial}, {args->grad_x}, [&](auto of, auto any) {
          return FocalGradient<decltype(of), any>{PlaceRows<any>(args->partial),
                                                  PlaceRows<any>(args->grad_x),
                                                  static_cast<const W*>(args->grad_loss->data),
                                                  static_cast<const W*>(args->num_positives->data)};
        });
  });
}
