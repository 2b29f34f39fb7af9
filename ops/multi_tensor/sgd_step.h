// SPDX-License-Identifier: Apache-2.0
// What one step of SGD does to one element.
#ifndef ANYOP_OPS_MULTI_TENSOR_SGD_STEP_H_
#define ANYOP_OPS_MULTI_TENSOR_SGD_STEP_H_

#include "anyop/ops/multi_tensor_sgd.h"
#include "step.h"

namespace anyop {

template <typename W>
struct SgdStep {
  W lr, scale, momentum, rest, l2, decay;  // decay: behind the momentum
  bool begins, nesterov;                   // begins: the buffer is written, not read

  ANYOP_STEP void operator()(W& p, W g, W& buffer) const {
    const W h = g * scale + l2 * p;
    const W mean = begins ? h : momentum * buffer + rest * h;
    const W change = nesterov ? momentum * mean + h : mean;
    buffer = mean;
    p -= lr * (decay * p + change);
  }
};

template <typename Single>
struct Sgd {
  static constexpr unsigned kReads = 7, kWrites = 5;
  static constexpr bool kCountsTensors = false;

  Single lr, step, inv_scale, found_inf;
  double momentum, rest, weight_decay;
  bool nesterov, decays_last, maximize;

  explicit Sgd(const MultiTensorSgdArgs& a)
      : lr{a.lr},
        step{a.step},
        inv_scale{a.inv_scale},
        found_inf{a.found_inf},
        momentum(a.momentum),
        rest(1 - a.dampening),
        weight_decay(a.weight_decay),
        nesterov(a.nesterov != 0),
        decays_last(a.wd_after_momentum != 0),
        maximize(a.maximize != 0) {}

  ANYOP_STEP bool Skips() const { return found_inf.IsSet(); }
  // Without momentum the buffer is not there: the mean is the gradient, as in the first step.
  template <typename W>
  ANYOP_STEP SgdStep<W> At(W, int64_t) const {
    const double scale = inv_scale.Read(1);
    SgdStep<W> s;
    s.lr = static_cast<W>(lr.Read(0));
    s.scale = static_cast<W>(maximize ? -scale : scale);
    s.momentum = static_cast<W>(momentum);
    s.rest = static_cast<W>(rest);
    s.l2 = static_cast<W>(decays_last ? 0 : weight_decay);
    s.decay = static_cast<W>(decays_last ? weight_decay : 0);
    s.begins = momentum == 0 || step.Read(2) <= 1;
    s.nesterov = nesterov && momentum != 0;
    return s;
  }
};

}  // namespace anyop

#endif  // ANYOP_OPS_MULTI_TENSOR_SGD_STEP_H_
