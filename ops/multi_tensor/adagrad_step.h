// SPDX-License-Identifier: Apache-2.0
// What one step of Adagrad does to one element.
#ifndef ANYOP_OPS_MULTI_TENSOR_ADAGRAD_STEP_H_
#define ANYOP_OPS_MULTI_TENSOR_ADAGRAD_STEP_H_

#include "anyop/ops/multi_tensor_adagrad.h"
#include "step.h"

namespace anyop {

template <typename W>
struct AdagradStep {
  W lr, scale, eps, l2, decay;

  ANYOP_STEP void operator()(W& p, W g, W& squares) const {
    const W h = g * scale + l2 * p;
    squares += h * h;
    p -= lr * (Quotient(h, Root(squares) + eps) + decay * p);
  }
};

template <typename Single>
struct Adagrad {
  static constexpr unsigned kReads = 7, kWrites = 5;
  static constexpr bool kCountsTensors = false;

  Single lr, inv_scale, found_inf;
  double eps, weight_decay;
  bool decoupled, maximize;

  explicit Adagrad(const MultiTensorAdagradArgs& a)
      : lr{a.lr},
        inv_scale{a.inv_scale},
        found_inf{a.found_inf},
        eps(a.eps),
        weight_decay(a.weight_decay),
        decoupled(a.decoupled != 0),
        maximize(a.maximize != 0) {}

  ANYOP_STEP bool Skips() const { return found_inf.IsSet(); }
  template <typename W>
  ANYOP_STEP AdagradStep<W> At(W, int64_t) const {
    const double scale = inv_scale.Read(1);
    AdagradStep<W> s;
    s.lr = static_cast<W>(lr.Read(0));
    s.scale = static_cast<W>(maximize ? -scale : scale);
    s.eps = static_cast<W>(eps);
    s.l2 = static_cast<W>(decoupled ? 0 : weight_decay);
    s.decay = static_cast<W>(decoupled ? weight_decay : 0);
    return s;
  }
};

}  // namespace anyop

#endif  // ANYOP_OPS_MULTI_TENSOR_ADAGRAD_STEP_H_
