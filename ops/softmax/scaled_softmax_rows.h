// SPDX-License-Identifier: Apache-2.0
// Softmaxes of rows times a number and their gradients on CUDA, with elements that a mask or a
// diagonal leaves out. A row is read once; sums are float32 (float64). Who does what:
// anyop/cuda/row.h. Of a triangle the lower half alone is read.
#pragma once

#include "anyop/cuda/row.h"
#include "scaled_exponent.h"

namespace anyop::cuda {
namespace {

enum class LeaveOut { kNothing, kFlagged, kAboveDiagonal };

// How many columns of a row of matrices (D, D) lie up to the diagonal.
struct Diagonal {
  int64_t D;
  Divisor by_D;
  bool small;  // numbers of rows and columns below 2^31

  explicit Diagonal(RowShape shape)
      : D(shape.D), small(shape.rows < INT64_C(0x7fffffff) && D < INT64_C(0x7fffffff) && D > 0) {
    if (small) by_D = Divisor(D);
  }
  __device__ int64_t Columns(int64_t row) const {
    if (!small) return row % D + 1;
    const uint32_t n = static_cast<uint32_t>(row);
    return n - by_D.Divide(n) * by_D.value + 1;
  }
};

// Rows of D columns. kAboveDiagonal: of matrices of D rows, whose row s has columns 0 to s.
template <typename T, LeaveOut kOut, bool kAny>
struct ScaledSoftmax {
  using W = Wide<T>;
  RowsAt<kAny> x, out;
  FlagsAt mask;
  RowOrder order;
  Exponent<W> exponent;
  Diagonal diagonal;
  int64_t rows;

  template <typename Row>
  __device__ void operator()(Row& row) const {
    if constexpr (kOut == LeaveOut::kAboveDiagonal) {
      const int64_t n = diagonal.Columns(row.index());
      row.Keep(n);
      Run(row, row.Replace(row.Signed(row.Read(x), exponent.sign), row.Behind(n), -INFINITY),
          [&] { return row.Behind(n); });
      row.WriteRest(out);
    } else if constexpr (kOut == LeaveOut::kFlagged) {
      if (row.index() < rows) row.Take(order.At(row.index()), rows);
      const auto flags = row.Read(mask);  // before x, so that both are on their way
      Run(row, row.Replace(row.Signed(row.Read(x), exponent.sign), flags, -INFINITY),
          [&] { return row.Read(mask); });
    } else {
      Write(row, row.Signed(row.Read(x), exponent.sign));
    }
  }

 private:
  // flags(): reads what is left out.
  template <typename Row, typename Held, typename Flags>
  __device__ void Run(Row& row, const Held& v, const Flags& flags) const {
    if (Write(row, v)) return;
    // Not a number but for what is left out, if that is not all.
    const W infinity = static_cast<W>(INFINITY);
    row.Write(out, [=](bool left_out) { return left_out ? W(0) : infinity - infinity; }, flags());
  }
  // Whether the row has a sum; without one, what was written is not a number.
  template <typename Row, typename Held>
  __device__ bool Write(Row& row, const Held& v) const {
    const W most = row.Most(v), factor = exponent.factor, least = static_cast<W>(-INFINITY);
    const W from = most == least && kOut != LeaveOut::kNothing ? W(0) : most;
    const auto power = [=](W v) { return PowerOfTwo((v - from) * factor); };
    const W sum = row.Sum([=](W sum, W v) { return sum + power(v); }, row.Again(v));
    const W scale = 1 / sum;
    row.Write(out, [=](W v) { return power(v) * scale; }, v);
    return sum > 0;
  }
};

template <typename T, LeaveOut kOut, bool kAny>
struct ScaledSoftmaxGradient {
  using W = Wide<T>;
  static constexpr int kHeld = 2;
  RowsAt<kAny> grad_out, out, grad_x;
  W scale;
  Diagonal diagonal;

  template <typename Row>
  __device__ void operator()(Row& row) const {
    if constexpr (kOut == LeaveOut::kAboveDiagonal) {
      const int64_t n = diagonal.Columns(row.index());
      row.Keep(n);
      const auto g = row.Read(grad_out), y = row.Read(out);
      Run(row, row.Replace(g, row.Behind(n), 0), row.Replace(y, row.Behind(n), 0));
      row.WriteRest(grad_x);
    } else {
      const auto g = row.Read(grad_out), y = row.Read(out);
      Run(row, g, y);
    }
  }

 private:
  template <typename Row, typename Held>
  __device__ void Run(Row& row, const Held& g, const Held& y) const {
    const W sum = row.Sum([](W sum, W g, W y) { return MulAdd(g, y, sum); }, g, y), by = scale;
    row.Write(grad_x, [=](W g, W y) { return (g - sum) * y * by; }, g, y);
  }
};

// rows of D columns; a mask, or none, for kFlagged.
template <LeaveOut kOut>
int32_t RunScaledSoftmax(AnyopCall* call, RowShape shape, const AnyopTensor* x,
                         const AnyopTensor* mask, double scale, const AnyopTensor* out) {
  return WithFloating(AnyopDtypeOf(x), [&](auto zero) {
    using T = decltype(zero);
    return RunRows<T>(call, shape, {x}, {out}, [&](auto of, auto any) {
      return ScaledSoftmax<decltype(of), kOut, any>{PlaceRows<any>(x),
                                                    PlaceRows<any>(out),
                                                    PlaceFlags(mask),
                                                    RowOrder(PlaceFlags(mask)),
                                                    Exponent<Wide<T>>(scale),
                                                    Diagonal(shape),
                                                    shape.rows};
    });
  });
}

template <LeaveOut kOut>
int32_t RunScaledSoftmaxGradient(AnyopCall* call, RowShape shape, const AnyopTensor* grad_out,
                                 const AnyopTensor* out, double scale, const AnyopTensor* grad_x) {
  return WithFloating(AnyopDtypeOf(out), [&](auto zero) {
    using T = decltype(zero);
    return RunRows<T>(call, shape, {grad_out, out}, {grad_x}, [&](auto of, auto any) {
      return ScaledSoftmaxGradient<decltype(of), kOut, any>{
          PlaceRows<any>(grad_out), PlaceRows<any>(out), PlaceRows<any>(grad_x),
          static_cast<Wide<T>>(scale), Diagonal(shape)};
    });
  });
}

}  // namespace
}  // namespace anyop::cuda
