// SPDX-License-Identifier: Apache-2.0
// softmax, log_softmax and their gradients on CUDA, over one dimension of a contiguous tensor. A
// row is read once; sums are float32 (float64). Who does what: anyop/cuda/row.h. Over another
// dimension than the last, each thread goes along one column.
#pragma once

#include "anyop/cuda/row.h"

namespace anyop::cuda {
namespace {

template <typename T, bool kLog, bool kAny>
struct Softmax {
  using W = Wide<T>;
  RowsAt<kAny> x, out;

  template <typename Row>
  __device__ void operator()(Row& row) const {
    const auto v = row.Read(x);
    const W most = row.Most(v);
    const W sum = row.Sum([=](W sum, W v) { return sum + Exponential(v - most); }, row.Again(v));
    if constexpr (kLog) {
      const W log_sum = log(sum);
      row.Write(out, [=](W v) { return v - most - log_sum; }, v);
    } else {
      const W scale = 1 / sum;
      row.Write(out, [=](W v) { return Exponential(v - most) * scale; }, v);
    }
  }
};

template <typename T, bool kLog, bool kAny>
struct SoftmaxGradient {
  using W = Wide<T>;
  static constexpr int kHeld = 2;
  RowsAt<kAny> grad_out, out, grad_x;

  template <typename Row>
  __device__ void operator()(Row& row) const {
    const auto g = row.Read(grad_out);
    const auto y = row.Read(out);
    const W sum = row.Sum([](W sum, W g, W y) { return kLog ? sum + g : MulAdd(g, y, sum); }, g, y);
    const auto gradient = [=](W g, W y) { return kLog ? g - Exponential(y) * sum : (g - sum) * y; };
    row.Write(grad_x, gradient, g, y);
  }
};

// A contiguous tensor as (outer, inner, C) with the dimension last.
struct DimLast {
  AnyopTensor tensor;
  int64_t shape[3] = {1, 1, 1}, strides[3];

  DimLast(const AnyopTensor* of, int64_t dim) : tensor(*of) {
    if (dim < 0) dim += of->ndim;
    for (int d = 0; d < of->ndim; ++d) shape[d < dim ? 0 : d == dim ? 2 : 1] *= of->shape[d];
    strides[0] = shape[1] * shape[2];
    strides[1] = 1;
    strides[2] = shape[1];
    tensor.ndim = 3;
    tensor.shape = shape;
    tensor.strides = strides;
  }
  DimLast(const DimLast&) = delete;
  RowShape rows() const { return {shape[0] * shape[1], shape[2]}; }
};

template <bool kLog, typename Args>
int32_t RunSoftmax(const Args* args, AnyopCall* call) {
  const DimLast x(args->x, args->dim), out(args->out, args->dim);
  return WithFloating(AnyopDtypeOf(args->x), [&](auto zero) {
    using T = decltype(zero);
    return RunRows<T>(call, x.rows(), {&x.tensor}, {&out.tensor}, [&](auto of, auto any) {
      return Softmax<decltype(of), kLog, any>{PlaceRows<any>(&x.tensor),
                                              PlaceRows<any>(&out.tensor)};
    });
  });
}

template <bool kLog, typename Args>
int32_t RunSoftmaxGradient(const Args* args, AnyopCall* call) {
  const DimLast grad(args->grad_out, args->dim), out(args->out, args->dim),
      grad_x(args->grad_x, args->dim);
  return WithFloating(AnyopDtypeOf(args->out), [&](auto zero) {
    using T = decltype(zero);
    return RunRows<T>(
        call, out.rows(), {&grad.tensor, &out.tensor}, {&grad_x.tensor}, [&](auto of, auto any) {
          return SoftmaxGradient<decltype(of), kLog, any>{PlaceRows<any>(&grad.tensor),
                                                          PlaceRows<any>(&out.tensor),
                                                          PlaceRows<any>(&grad_x.tensor)};
        });
  });
}

}  // namespace
}  // namespace anyop::cuda
