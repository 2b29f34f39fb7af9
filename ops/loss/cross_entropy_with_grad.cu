// SPDX-License-Identifier: Apache-2.0
// cross_entropy and its gradient in one pass on CUDA: see class_rows_cuda.h.
#include "anyop/ops/cross_entropy_with_grad.h"
#include "class_rows_cuda.h"
#include "loss_numbers.h"

extern "C" int32_t anyop_cross_entropy_with_grad_cuda(const CrossEntropyWithGradArgs* args,
                                                      AnyopCall* call) {
  using namespace anyop::cuda;
  if (const int32_t status = anyop::CheckLossNumbers(call, args->label_smoothing, 0)) return status;
  return WithFloating(AnyopDtypeOf(args->x), [&](auto zero) {
    using T = decltype(zero);
    using W = Wide<T>;
    const ClassNumbers<W> numbers(*args);
    W* const loss = DataOf<W>(args->loss);
    if (args->V == 0) return RunWithoutClasses<W>(call, numbers, loss, nullptr);
    return RunRows<T>(
        call, {args->rows, args->V}, {args->x}, {args->grad_x}, [&](auto of, auto any) {
          return LossesAndGradients<decltype(of), any>{PlaceRows<any>(args->x),
                                                       PlaceRows<any>(args->grad_x), numbers,
                                                       DataOf<const W>(args->scale), loss};
        });
  });
}
