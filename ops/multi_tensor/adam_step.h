// SPDX-License-Identifier: Apache-2.0
// What one step of Adam does to one element.
#ifndef ANYOP_OPS_MULTI_TENSOR_ADAM_STEP_H_
#define ANYOP_OPS_MULTI_TENSOR_ADAM_STEP_H_

#include "anyop/ops/multi_tensor_adam.h"
#include "average_step.h"
#include "step.h"

namespace anyop {

template <typename W>
struct AdamStep {
  W lr, scale, beta1, rest1, beta2, rest2, eps, l2, decay;
  W mean_factor, root_factor;  // 1 / (1 - beta1^step), 1 / sqrt(1 - beta2^step)

  ANYOP_STEP void operator()(W& p, W g, W& m, W& v) const {
    const W h = SumOfTwo(g, scale, l2, p);
    m = SumOfTwo(beta1, m, rest1, h);
    v = SumOfTwo(beta2, v, rest2, h * h);
    const W root = MulAdd(Root(v), root_factor, eps);
    p = MulAdd(-lr, MulAdd(decay, p, Quotient(m * mean_factor, root)), p);
  }
};

template <typename Single>
struct Adam {
  static constexpr unsigned kReads = 15, kWrites = 13;
  static constexpr bool kCountsTensors = false;

  Single lr, step, inv_scale, found_inf;
  double beta1, beta2, log_beta1, log_beta2, eps, weight_decay;
  bool decoupled, bias_correction, maximize;

  explicit Adam(const MultiTensorAdamArgs& a)
      : lr{a.lr},
        step{a.step},
        inv_scale{a.inv_scale},
        found_inf{a.found_inf},
        beta1(a.beta1),
        beta2(a.beta2),
        log_beta1(log(a.beta1)),
        log_beta2(log(a.beta2)),
        eps(a.eps),
        weight_decay(a.weight_decay),
        decoupled(a.decoupled != 0),
        bias_correction(a.bias_correction != 0),
        maximize(a.maximize != 0) {}

  ANYOP_STEP bool Skips() const { return found_inf.IsSet(); }
  template <typename W>
  ANYOP_STEP AdamStep<W> At(W, int64_t) const {
    const double scale = inv_scale.Read(1), number = step.Read(1);
    AdamStep<W> s;
    s.lr = static_cast<W>(lr.Read(0));
    s.scale = static_cast<W>(maximize ? -scale : scale);
    s.beta1 = static_cast<W>(beta1);
    s.rest1 = static_cast<W>(1 - beta1);
    s.beta2 = static_cast<W>(beta2);
    s.rest2 = static_cast<W>(1 - beta2);
    s.eps = static_cast<W>(eps);
    s.l2 = static_cast<W>(decoupled ? 0 : weight_decay);
    s.decay = static_cast<W>(decoupled ? weight_decay : 0);
    s.mean_factor = static_cast<W>(bias_correction ? 1 / BiasOf(log_beta1, number) : 1);
    s.root_factor = static_cast<W>(bias_correction ? 1 / sqrt(BiasOf(log_beta2, number)) : 1);
    return s;
  }
};

// With a running average of the parameters as one more state: they enter it before they are
// rounded.
template <typename W>
struct AveragedAdamStep {
  AdamStep<W> adam;
  AverageStep<W> into;

  ANYOP_STEP void operator()(W& p, W g, W& m, W& v, W& average) const {
    adam(p, g, m, v);
    into(average, p);
  }
};

template <typename Single>
struct AveragedAdam : Adam<Single> {
  static constexpr unsigned kReads = 31, kWrites = 29;

  Single rate;

  explicit AveragedAdam(const MultiTensorAdamArgs& a) : Adam<Single>(a), rate{a.average_rate} {}

  template <typename W>
  ANYOP_STEP AveragedAdamStep<W> At(W zero, int64_t n) const {
    return {Adam<Single>::At(zero, n), AverageStep<W>::Of(this->step.Read(1) - 1, rate)};
  }
};

}  // namespace anyop

#endif  // ANYOP_OPS_MULTI_TENSOR_ADAM_STEP_H_
