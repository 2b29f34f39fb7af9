// SPDX-License-Identifier: Apache-2.0
// rms_norm, layer_norm and their relatives on CUDA: a row is read once, sums are float32 (float64).
// 2 s bytes are moved an element of size s, 4 s with a residual. Who does what: anyop/cuda/row.h.
#pragma once

#include "anyop/cuda/row.h"

namespace anyop::cuda {
namespace {

// kCenter: around the mean, as layer_norm does. kAdds: of the sum with a residual, which is
// written.
template <typename T, typename TW, bool kCenter, bool kAdds, bool kAny>
struct Norm {
  using W = Wide<T>;
  static constexpr int kHeld = kAdds ? 2 : 1, kVectors = kAdds ? 2 : 4;
  RowsAt<kAny> x, residual, sum, out;
  ColumnsAt<TW, kAny> weight;
  ColumnsAt<TW, kAny, false> bias;
  float *mean, *rstd;  // of each row; NULL where nobody asks
  W eps, inverse_D;

  template <typename Row>
  __device__ void operator()(Row& row) const {
    if constexpr (kAdds) {
      const auto first = row.Read(x), second = row.Read(residual);
      Scale(row, row.WriteAndHold(sum, [](W v, W r) { return v + r; }, first, second));
    } else {
      Scale(row, row.Read(x));
    }
  }

 private:
  template <typename Row, typename Held>
  __device__ void Scale(Row& row, const Held& v) const {
    const auto w = row.Columns(weight);
    W middle = 0;
    if constexpr (kCenter) middle = row.Sum([](W sum, W v) { return sum + v; }, v) * inverse_D;
    const auto square = [=](W sum, W v) { return MulAdd(v - middle, v - middle, sum); };
    const W squares = kCenter ? row.Sum(square, row.Again(v)) : row.Sum(square, v);
    const W scale = ReciprocalRoot(MulAdd(squares, inverse_D, eps));
    if (mean && row.IsFirst()) mean[row.index()] = static_cast<float>(middle);
    if (rstd && row.IsFirst()) rstd[row.index()] = static_cast<float>(scale);
    if constexpr (kCenter) {
      const auto result = [=](W v, W w, W b) { return MulAdd((v - middle) * scale, w, b); };
      row.Write(out, result, v, w, row.Columns(bias));
    } else {
      row.Write(out, [=](W v, W w) { return v * w * scale; }, v, w);
    }
  }
};

// Every place of `to` for rows of nothing.
__global__ void FillStatistics(float* to, int64_t rows, float value) {
  for (int64_t row = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; row < rows;
       row += int64_t{gridDim.x} * blockDim.x)
    to[row] = value;
}
inline int32_t RunFill(AnyopCall* call, float* to, int64_t rows, float value) {
  if (!to || rows == 0) return kAnyopOk;
  const int64_t blocks = CeilDiv(rows, 256);
  return Launch{dim3(static_cast<unsigned>(blocks < 4096 ? blocks : 4096)), dim3(256)}.Run(
      call, FillStatistics, to, rows, value);
}

// The tensors of a call; NULL where the operator has none.
struct NormCall {
  AnyopCall* call;
  int64_t rows, D;
  const AnyopTensor *x, *out, *weight, *bias, *residual, *sum, *mean, *rstd;
  double eps, weight_offset;
};

template <bool kCenter, bool kAdds, typename T, typename TW>
int32_t RunNormOf(const NormCall& c) {
  const auto data = [](const AnyopTensor* t) { return t ? static_cast<float*>(t->data) : nullptr; };
  if (c.D == 0) {
    if (int32_t status = RunFill(c.call, data(c.mean), c.rows, 0)) return status;
    return RunFill(c.call, data(c.rstd), c.rows, static_cast<float>(1 / sqrt(c.eps)));
  }
  const auto make = [&](auto zero, auto any) {
    using Row = decltype(zero);
    return Norm<Row, ColumnOf<Row, TW, any>, kCenter, kAdds, any>{
        PlaceRows<any>(c.x),
        PlaceRows<any>(c.residual),
        PlaceRows<any>(c.sum),
        PlaceRows<any>(c.out),
        PlaceColumns<Row, TW, any>(c.weight, c.weight_offset, 1),
        PlaceColumns<Row, TW, any>(c.bias),
        data(c.mean),
        data(c.rstd),
        EpsilonOf<T>(c.eps),
        1 / static_cast<Wide<T>>(c.D)};
  };
  return RunRows<T>(c.call, {c.rows, c.D}, {c.x, c.residual}, {c.out, c.sum}, {c.weight, c.bias},
                    make);
}

// Calls body with zeros of the types of rows and of a weight: rows are of x's type, or float64
// where the result is; a weight has x's type or float32.
template <typename Body>
int32_t WithWeight(const AnyopTensor* x, const AnyopTensor* out, const AnyopTensor* weight,
                   const Body& body) {
  const AnyopDtype dtype = AnyopDtypeOf(x), of_weight = weight ? AnyopDtypeOf(weight) : dtype;
  if (dtype == kAnyopFloat64 || (out && AnyopDtypeOf(out) == kAnyopFloat64))
    return WithFloating(of_weight, [&](auto weight_zero) { return body(double(), weight_zero); });
  return WithFloating(dtype, [&](auto zero) {
    return of_weight == dtype ? body(zero, zero) : body(zero, float());
  });
}

template <bool kCenter, bool kAdds>
int32_t RunNorm(const NormCall& c) {
  return WithWeight(c.x, c.out, c.weight ? c.weight : c.bias, [&](auto zero, auto weight) {
    return RunNormOf<kCenter, kAdds, decltype(zero), decltype(weight)>(c);
  });
}

}  // namespace
}  // namespace anyop::cuda
