// SPDX-License-Identifier: Apache-2.0
// cross_entropy on CUDA: see class_rows_cuda.h.
#include "anyop/ops/cross_entropy.h"
#include "class_rows_cuda.h"
#include "loss_numbers.h"

extern "C" int32_t anyop_cross_entropy_cuda(const CrossEntropyArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  if (const int32_t status = anyop::CheckLossNumbers(call, args->label_smoothing, 0)) return status;
  return WithFloating(AnyopDtypeOf(args->x), [&](auto zero) {
    using T = decltype(zero);
    using W = Wide<T>;
    const ClassNumbers<W> numbers(*args);
    W *const loss = DataOf<W>(args->loss), *const lse = DataOf<W>(args->lse);
    if (args->V == 0) return RunWithoutClasses(call, numbers, loss, lse);
    return RunRows<T>(call, {args->rows, args->V}, {args->x}, {nullptr}, [&](auto of, auto any) {
      return Losses<decltype(of), any>{PlaceRows<any>(args->x), numbers, loss, lse};
    });
  });
}
