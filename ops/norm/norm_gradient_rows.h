// SPDX-License-Identifier: Apache-2.0
// Gradients of the norms on CUDA: each row is read once, and its statistics are computed again;
// sums are float32 (float64). 3 s bytes are moved an element of size s, 4 s with the gradient of a
// sum. Who does what: anyop/cuda/row_sums.h.
#pragma once

#include "anyop/cuda/map.h"
#include "anyop/cuda/row_sums.h"
#include "norm_rows.h"

namespace anyop::cuda {

// The tensors of a call; NULL where the operator has none or nobody wants it.
struct GradientCall {
  AnyopCall* call;
  int64_t rows, D;
  const AnyopTensor *grad_out, *x, *added, *weight, *grad_x, *grad_weight, *grad_bias;
  double eps, weight_offset;
};

// Of rows to which nothing is added, or that have no grad_out: in layer_norm_backward.cu and
// rms_norm_backward.cu, for the fused norms too.
int32_t RunLayerNormGradient(const GradientCall& c);
int32_t RunRmsNormGradient(const GradientCall& c);

namespace {

// Inputs: grad_out, x and, where there are three, what is added to grad_x.
template <typename T, typename TW, bool kCenter, int kCount, bool kAny>
struct NormGradient {
  using W = Wide<T>;
  static constexpr int kInputs = kCount, kSums = kCenter ? 2 : 1, kColumns = 1;
  static constexpr bool kPlain = !kAny;
  RowsAt<kAny> in[kInputs];
  RowsAt<kAny> grad_x;
  ColumnsAt<TW, kAny> weight;
  W eps, inverse_D;

  template <typename Row, typename Sums, typename Release, typename Column>
  __device__ void operator()(Row& row, Sums& sums, const Release& release, const Column& w) const {
    const auto v = row.ReadAll(in);
    W mean = 0, squares, products, level = 0;
    if constexpr (kCenter) {
      const W about = row.About(in, 1, v[1], inverse_D);
      W totals[4] = {};
      const auto add = [&](W g, W x, W w) {
        const W rest = x - about, product = g * w;
        totals[0] += rest;
        totals[1] = MulAdd(rest, rest, totals[1]);
        totals[2] = MulAdd(product, rest, totals[2]);
        totals[3] += product;
      };
      row.ForEach(add, v[0], v[1], w);
      row.Totals(totals);
      const W shift = totals[0] * inverse_D;
      mean = about + shift;
      squares = fmax(MulAdd(-shift, totals[0], totals[1]), W(0));
      products = MulAdd(-shift, totals[3], totals[2]);
      level = totals[3] * inverse_D;
    } else {
      W totals[2] = {};
      const auto add = [&](W g, W x, W w) {
        totals[0] = MulAdd(x, x, totals[0]);
        totals[1] = MulAdd(g * w, x, totals[1]);
      };
      row.ForEach(add, v[0], v[1], w);
      row.Totals(totals);
      squares = totals[0];
      products = totals[1];
    }
    release();
    const W scale = ReciprocalRoot(MulAdd(squares, inverse_D, eps));
    const W slope = products * inverse_D * scale * scale * scale;
    level *= scale;
    const auto gradient = [=](const W(&in)[kInputs], W w) {
      const W rest = kCenter ? MulAdd(in[1] - mean, slope, level) : in[1] * slope;
      const W own = MulAdd(in[0] * scale, w, -rest);
      return kInputs == 3 ? own + in[kInputs - 1] : own;
    };
    row.WriteAndAdd(*this, grad_x, sums, row.Note(scale, mean), gradient, v, w);
  }
  template <typename F>
  __device__ auto WithColumns(const F& f) const {
    return f(weight);
  }
  __device__ static void AddColumn(W (&sums)[kSums], const Notes<W>& notes, const W (&in)[kInputs],
                                   W) {
    const W rest = kCenter ? in[1] - notes.at[1] : in[1];
    sums[0] = MulAdd(in[0] * notes.at[0], rest, sums[0]);
    if constexpr (kCenter) sums[1] += in[0];
  }
};

template <typename T, bool kCenter, typename Make>
int32_t RunSumming(const GradientCall& c, const Make& make) {
  const RowShape shape = {c.rows, c.D};
  if constexpr (kCenter) {
    return RunRowsAndSums<T>(c.call, shape, {c.grad_out, c.x, c.added}, {c.grad_x}, {c.weight},
                             {c.grad_weight, c.grad_bias}, make);
  } else {
    return RunRowsAndSums<T>(c.call, shape, {c.grad_out, c.x, c.added}, {c.grad_x}, {c.weight},
                             {c.grad_weight}, make);
  }
}

template <bool kCenter, int kInputs, typename T, typename TW>
int32_t RunGradientOf(const GradientCall& c) {
  const Wide<T> eps = EpsilonOf<T>(c.eps), inverse_D = 1 / static_cast<Wide<T>>(c.D ? c.D : 1);
  return RunSumming<T, kCenter>(c, [&](auto zero, auto any) {
    using Row = decltype(zero);
    NormGradient<Row, ColumnOf<Row, TW, any>, kCenter, kInputs, any> op = {
        {PlaceRows<any>(c.grad_out), PlaceRows<any>(c.x)},
        PlaceRows<any>(c.grad_x),
        PlaceColumns<Row, TW, any>(c.weight, c.weight_offset, 1),
        eps,
        inverse_D};
    if constexpr (kInputs == 3) op.in[2] = PlaceRows<any>(c.added);
    return op;
  });
}

// An element, or nothing of it.
struct Kept {
  bool none;
  template <typename W>
  __device__ W operator()(W v) const {
    return none ? W(0) : v;
  }
};

// Without grad_out: what is added alone, and zeros.
template <typename T>
int32_t RunWithoutGradient(const GradientCall& c) {
  SumsTo<2> to = {};
  const AnyopTensor* const sums[] = {c.grad_weight, c.grad_bias};
  for (int s = 0; s < 2; ++s) {
    to.data[s] = sums[s] ? static_cast<char*>(sums[s]->data) : nullptr;
    to.dtype[s] = sums[s] ? AnyopDtypeOf(sums[s]) : kAnyopNoDtype;
  }
  if (c.D && (c.grad_weight || c.grad_bias)) {
    const Wide<T>* none = nullptr;
    if (int32_t status = RunAddParts(c.call, none, to, 0, c.D, false)) return status;
  }
  if (!c.grad_x) return kAnyopOk;
  return RunFloatMap(c.call, Kept{!c.added}, {c.added ? c.added : c.x}, c.grad_x);
}

// kInputs: 3 where something is added to grad_x.
template <bool kCenter, int kInputs>
int32_t RunGradient(const GradientCall& c) {
  if (!c.grad_x && !c.grad_weight && !c.grad_bias) return kAnyopOk;
  const AnyopDtype dtype = AnyopDtypeOf(c.x);
  const bool same = !c.weight || AnyopDtypeOf(c.weight) == dtype;
  return WithFloating(dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (kInputs == 2) {
      if (!c.grad_out) return RunWithoutGradient<T>(c);
    }
    return same ? RunGradientOf<kCenter, kInputs, T, T>(c)
                : RunGradientOf<kCenter, kInputs, T, float>(c);
  });
}

}  // namespace
}  // namespace anyop::cuda
