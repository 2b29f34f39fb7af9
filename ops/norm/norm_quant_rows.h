// SPDX-License-Identifier: Apache-2.0
// rms_norm_quant and fused_add_rms_norm_quant on CUDA: norm_rows.h, whose result is quantised from
// the registers (../quant/quantize_cuda.h).
#pragma once

#include "../quant/quantize_cuda.h"
#include "norm_rows.h"

namespace anyop::cuda {
namespace {

// residual, sum: NULL where the operator has none.
template <bool kAdds, typename Args>
int32_t RunNormQuant(const Args* args, AnyopCall* call, const AnyopTensor* residual,
                     const AnyopTensor* sum) {
  const QuantizedRows out(args->out, args->scale, args->scales, args->D, args->group);
  const RowShape shape = {args->rows, args->D};
  const auto run = [&](auto zero, auto weight_zero) {
    using T = decltype(zero);
    using TW = decltype(weight_zero);
    const RowsFit fit = FitRows<T>(shape, {args->x, residual}, {sum}, {args->weight});
    return RunQuantized<T, true, 1, false>(call, shape, fit, out, [&](auto any) {
      return Norm<T, TW, false, kAdds, any, QuantizedRows>{
          PlaceRows<any>(args->x),
          PlaceRows<any>(residual),
          PlaceRows<any>(sum),
          out,
          PlaceColumns<TW, any>(args->weight, args->weight_offset, 1),
          {nullptr, 0},
          nullptr,
          nullptr,
          EpsilonOf<T>(args->eps),
          1 / static_cast<float>(args->D)};
    });
  };
  const AnyopDtype dtype = AnyopDtypeOf(args->x);
  const bool same = !args->weight || AnyopDtypeOf(args->weight) == dtype;
  return WithFloat32Sums(dtype,
                         [&](auto zero) { return same ? run(zero, zero) : run(zero, float()); });
}

}  // namespace
}  // namespace anyop::cuda
