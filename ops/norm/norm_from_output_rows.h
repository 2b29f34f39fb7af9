// SPDX-License-Identifier: Apache-2.0
// Gradients of norms from their results on CUDA: each row is read once; sums are float32. What was
// normalised is the result less the bias, divided by the factor, or 0 where that is 0. 3 s bytes
// are moved an element of size s. Who does what: anyop/cuda/row_sums.h.
#pragma once

#include "anyop/cuda/row_sums.h"

namespace anyop::cuda {
namespace {

// Inputs: grad_out, out. kCenter: of layer_norm, which has a bias.
template <typename T, typename TW, bool kCenter, bool kAny>
struct OutputGradient {
  using W = float;
  static constexpr int kInputs = 2, kSums = kCenter ? 2 : 1, kColumns = kSums;
  static constexpr bool kPlain = !kAny;
  RowsAt<kAny> in[kInputs];
  RowsAt<kAny> grad_x;
  ColumnsAt<TW, kAny> weight, bias;
  const float* rstd;
  int64_t rows;
  W inverse_D;

  // columns: the factor, the bias.
  template <typename Row, typename Sums, typename Release, typename Factor, typename... Bias>
  __device__ void operator()(Row& row, Sums& sums, const Release& release, const Factor& factor,
                             const Bias&... bias) const {
    const auto v = row.ReadAll(in);
    const W scale = row.index() < rows ? rstd[row.index()] : 0;
    W totals[kSums] = {};
    const auto add = [&](W g, W y, W w, auto... b) {
      totals[0] = MulAdd(g, (y - ... - b), totals[0]);
      if constexpr (kCenter) totals[1] = MulAdd(g, w, totals[1]);
    };
    row.ForEach(add, v[0], v[1], factor, bias...);
    row.Totals(totals);
    release();
    const W share = totals[0] * inverse_D, level = kCenter ? totals[kSums - 1] * inverse_D : W(0);
    const auto gradient = [=](const W(&in)[kInputs], W w, auto... b) {
      const W product = kCenter ? MulAdd(in[0], w, -level) : in[0] * w;
      return scale * MulAdd(-Normal(in[1], w, (W(0) + ... + b)), share, product);
    };
    row.WriteAndAdd(*this, grad_x, sums, row.Note(scale), gradient, v, factor, bias...);
  }
  template <typename F>
  __device__ auto WithColumns(const F& f) const {
    if constexpr (kCenter) {
      return f(weight, bias);
    } else {
      return f(weight);
    }
  }
  __device__ static void AddColumn(W (&sums)[kSums], const Notes<W>&, const W (&in)[kInputs], W w,
                                   W b = 0) {
    sums[0] = MulAdd(in[0], Normal(in[1], w, b), sums[0]);
    if constexpr (kCenter) sums[1] += in[0];
  }

 private:
  // To two units in the last place; 0 too for factors above 2^126.
  __device__ static W Normal(W y, W w, W b) { return w == 0 ? 0 : __fdividef(y - b, w); }
};

// grad_bias, bias: NULL where the operator has none.
template <bool kCenter, typename Args>
int32_t RunFromOutput(const Args* args, AnyopCall* call, const AnyopTensor* bias,
                      const AnyopTensor* grad_bias) {
  const AnyopTensor *grad_x = args->grad_x, *grad_weight = args->grad_weight;
  if (!grad_x && !grad_weight && !grad_bias) return kAnyopOk;
  const RowShape shape = {args->rows, args->D};
  const auto run = [&](auto zero, auto weight_zero) {
    using T = decltype(zero);
    using TW = decltype(weight_zero);
    const auto make = [&](auto of, auto any) {
      using Row = decltype(of);
      return OutputGradient<Row, ColumnOf<Row, TW, any>, kCenter, any>{
          {PlaceRows<any>(args->grad_out), PlaceRows<any>(args->out)},
          PlaceRows<any>(grad_x),
          PlaceColumns<Row, TW, any>(args->weight, args->weight_offset, 1),
          PlaceColumns<Row, TW, any>(bias, 0, 0),
          static_cast<const float*>(args->rstd->data),
          args->rows,
          1 / static_cast<float>(args->D ? args->D : 1)};
    };
    if constexpr (kCenter) {
      return RunRowsAndSums<T>(call, shape, {args->grad_out, args->out}, {grad_x},
                               {args->weight, bias}, {grad_weight, grad_bias}, make);
    } else {
      return RunRowsAndSums<T>(call, shape, {args->grad_out, args->out}, {grad_x},
                               {args->weight, bias}, {grad_weight}, make);
    }
  };
  const AnyopDtype dtype = AnyopDtypeOf(args->out);
  const AnyopTensor* columns = args->weight ? args->weight : bias;
  const bool same = !columns || AnyopDtypeOf(columns) == dtype;
  return WithFloat32Sums(dtype,
                         [&](auto zero) { return same ? run(zero, zero) : run(zero, float()); });
}

}  // namespace
}  // namespace anyop::cuda
