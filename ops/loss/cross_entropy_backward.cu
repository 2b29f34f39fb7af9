// SPDX-License-Identifier: Apache-2.0
// Gradient of cross_entropy on CUDA: see class_rows_cuda.h.
#include "anyop/ops/cross_entropy_backward.h"
#include "class_rows_cuda.h"
#include "loss_numbers.h"

extern "C" int32_t anyop_cross_entropy_backward_cuda(const CrossEntropyBackwardArgs* args,
                                                     AnyopCall* call) {
  using namespace anyop::cuda;
  if (const int32_t status = anyop::CheckLossNumbers(call, args->label_smoothing, 0)) return status;
  return WithFloating(AnyopDtypeOf(args->x), [&](auto zero) {
    using T = decltype(zero);
    using W = Wide<T>;
    return RunRows<T>(call, {args->rows, args->V}, {args->x}, {args->grad_x},
                      [&](auto of, auto any) {
                        return Gradients<decltype(of), any>{
                            PlaceRows<any>(args->x),          PlaceRows<any>(args->grad_x),
                            ClassNumbers<W>(*args),           DataOf<const W>(args->lse),
                            DataOf<const W>(args->grad_loss), DataOf<const W>(args->grad_lse)};
                      });
  });
}
