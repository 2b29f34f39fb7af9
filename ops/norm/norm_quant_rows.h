// SPDX-License-Identifier: Apache-2.0
// rms_norm_quant and fused_add_rms_norm_quant on CUDA: norm_rows.h, whose result is quantised from
// the registers (../quant/quantize_cuda.h).
#pragma once

#include "../quant/quantize_cuda.h"
#include "norm_rows.h"

namespace anyop::cuda {
namespace {

// norm_rows.h's Norm around 0, whose result is quantised: where the threads of a row find its
// greatest, they find it beside the sum of squares.
template <typename T, typename TW, bool kAdds, bool kAny>
struct NormQuant {
  static constexpr int kHeld = kAdds ? 2 : 1, kVectors = kAdds ? 2 : 4;
  static constexpr bool kKeepsValues = true;
  RowsAt<kAny> x, residual, sum;
  QuantizedRows<kAny> out;
  ColumnsAt<TW, kAny> weight;
  float eps, inverse_D;

  template <typename Row>
  __device__ void operator()(Row& row) const {
    if constexpr (kAdds) {
      const auto first = row.Read(x), second = row.Read(residual);
      Scale(row, row.WriteAndHold(sum, [](float v, float r) { return v + r; }, first, second));
    } else {
      Scale(row, row.Read(x));
    }
  }

 private:
  template <typename Row, typename Held>
  __device__ void Scale(Row& row, const Held& v) const {
    const auto w = row.Columns(weight);
    const auto product = [](float v, float w) { return v * w; };
    const auto square = [](float sum, float v) { return MulAdd(v, v, sum); };
    float squares;
    const auto known = out.SumAndValues(row, &squares, square, product, v, w);
    out.WriteTimes(row, ReciprocalRoot(MulAdd(squares, inverse_D, eps)), known, product, v, w);
  }
};

// residual, sum: NULL where the operator has none.
template <bool kAdds, typename Args>
int32_t RunNormQuant(const Args* args, AnyopCall* call, const AnyopTensor* residual,
                     const AnyopTensor* sum) {
  const auto to = [&](auto any) {
    return QuantizedRows<any>(args->out, args->scale, args->scales, args->D, args->group);
  };
  const RowShape shape = {args->rows, args->D};
  const auto run = [&](auto zero, auto weight_zero) {
    using T = decltype(zero);
    using TW = decltype(weight_zero);
    const RowsFit fit = FitRows<T>(shape, {args->x, residual}, {sum}, {args->weight});
    return RunQuantized<T, true>(call, shape, fit, to(std::true_type()), [&](auto of, auto any) {
      using Row = decltype(of);
      return NormQuant<Row, ColumnOf<Row, TW, any>, kAdds, any>{
          PlaceRows<any>(args->x),
          PlaceRows<any>(residual),
          PlaceRows<any>(sum),
          to(any),
          PlaceColumns<Row, TW, any>(args->weight, args->weight_offset, 1),
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
