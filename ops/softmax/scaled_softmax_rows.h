// SPDX-License-Identifier: Apache-2.0
// Softmaxes of rows times a number and their gradients on CUDA, with elements that a mask or a
// diagonal leaves out. A row is read once; sums are float32 (float64). Who does what:
// anyop/cuda_row.h. Of a triangle the lower half alone is read.
#pragma once

#include "anyop/cuda_row.h"
#include "scaled_exponent.h"

namespace anyop::cuda {
namespace {

__device__ inline float PowerOfTwo(float v) { return exp2f(v); }
__device__ inline double PowerOfTwo(double v) { return exp2(v); }
// Whether an element is left out: it may have a flag that says so.
__device__ inline bool IsOut() { return false; }
__device__ inline bool IsOut(bool out) { return out; }

enum class LeaveOut { kNothing, kFlagged, kAboveDiagonal };

// Rows of D columns. kAboveDiagonal: of matrices of D rows, whose row s has columns 0 to s.
template <typename T, LeaveOut kOut, bool kAny>
struct ScaledSoftmax {
  using W = Wide<T>;
  RowsAt<kAny> x, out;
  FlagsAt mask;
  Exponent<W> exponent;
  int64_t D;

  template <typename Row>
  __device__ void operator()(Row& row) const {
    if constexpr (kOut == LeaveOut::kAboveDiagonal) {
      const int64_t n = row.index() % D + 1;
      row.Keep(n);
      Run(row, row.Read(x), row.Behind(n));
      row.WriteRest(out);
    } else if constexpr (kOut == LeaveOut::kFlagged) {
      Run(row, row.Read(x), row.Read(mask));
    } else {
      Run(row, row.Read(x));
    }
  }

 private:
  template <typename Row, typename Held, typename... Flags>
  __device__ void Run(Row& row, const Held& v, const Flags&... flags) const {
    const Exponent<W> e = exponent;
    const W nothing = static_cast<W>(-INFINITY);
    const W most = row.Max([=](W v, auto... out) { return IsOut(out...) ? nothing : v * e.sign; },
                           v, flags...);
    const auto power = [=](W v) { return PowerOfTwo(MulAdd(v, e.sign, -most) * e.factor); };
    const auto add = [=](W sum, W v, auto... out) { return IsOut(out...) ? sum : sum + power(v); };
    const W scale = 1 / row.Sum(add, row.Again(v), flags...);
    row.Write(
        out, [=](W v, auto... out) { return IsOut(out...) ? W(0) : power(v) * scale; }, v,
        flags...);
  }
};

template <typename T, LeaveOut kOut, bool kAny>
struct ScaledSoftmaxGradient {
  using W = Wide<T>;
  RowsAt<kAny> grad_out, out, grad_x;
  W scale;
  int64_t D;

  template <typename Row>
  __device__ void operator()(Row& row) const {
    if constexpr (kOut == LeaveOut::kAboveDiagonal) {
      const int64_t n = row.index() % D + 1;
      row.Keep(n);
      Run(row, row.Read(grad_out), row.Read(out), row.Behind(n));
      row.WriteRest(grad_x);
    } else {
      Run(row, row.Read(grad_out), row.Read(out));
    }
  }

 private:
  template <typename Row, typename Held, typename... Flags>
  __device__ void Run(Row& row, const Held& g, const Held& y, const Flags&... flags) const {
    const auto add = [](W sum, W g, W y, auto... out) {
      return IsOut(out...) ? sum : MulAdd(g, y, sum);
    };
    const W sum = row.Sum(add, g, y, flags...), by = scale;
    const auto gradient = [=](W g, W y, auto... out) {
      return IsOut(out...) ? W(0) : (g - sum) * y * by;
    };
    row.Write(grad_x, gradient, g, y, flags...);
  }
};

// rows of D columns; a mask, or none, for kFlagged.
template <LeaveOut kOut>
int32_t RunScaledSoftmax(AnyopCall* call, RowShape shape, const AnyopTensor* x,
                         const AnyopTensor* mask, double scale, const AnyopTensor* out) {
  return WithFloating(AnyopDtypeOf(x), [&](auto zero) {
    using T = decltype(zero);
    return RunRows<T>(call, shape, {x}, {out}, [&](auto any) {
      return ScaledSoftmax<T, kOut, any>{PlaceRows<any>(x), PlaceRows<any>(out), PlaceFlags(mask),
                                         Exponent<Wide<T>>(scale), shape.D};
    });
  });
}

template <LeaveOut kOut>
int32_t RunScaledSoftmaxGradient(AnyopCall* call, RowShape shape, const AnyopTensor* grad_out,
                                 const AnyopTensor* out, double scale, const AnyopTensor* grad_x) {
  return WithFloating(AnyopDtypeOf(out), [&](auto zero) {
    using T = decltype(zero);
    return RunRows<T>(call, shape, {grad_out, out}, {grad_x}, [&](auto any) {
      return ScaledSoftmaxGradient<T, kOut, any>{PlaceRows<any>(grad_out), PlaceRows<any>(out),
                                                 PlaceRows<any>(grad_x),
                                                 static_cast<Wide<T>>(scale), shape.D};
    });
  });
}

}  // namespace
}  // namespace anyop::cuda
