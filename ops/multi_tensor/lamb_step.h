// SPDX-License-Identifier: Apache-2.0
// What the two stages of LAMB do to one element: an update, and the parameter less a multiple of
// it.
#ifndef ANYOP_OPS_MULTI_TENSOR_LAMB_STEP_H_
#define ANYOP_OPS_MULTI_TENSOR_LAMB_STEP_H_

#include "step.h"

namespace anyop {

template <typename W>
struct LambUpdate {
  W scale, beta1, rest1, beta2, rest2, eps, l2, decay, mean_factor, root_factor;

  ANYOP_STEP W operator()(W p, W g, W& m, W& v) const {
    const W h = g * scale + l2 * p;
    m = beta1 * m + rest1 * h;
    v = beta2 * v + rest2 * (h * h);
    return Quotient(m * mean_factor, Root(v) * root_factor + eps) + decay * p;
  }
};

// Attributes and numbers of stage one; Args: of multi_tensor_lamb or of the stage alone.
template <typename Single>
struct Lamb {
  Single step, global_norm, max_grad_norm, inv_scale, found_inf;
  double beta1, beta2, log_beta1, log_beta2, rest1, eps, weight_decay;
  bool decoupled, bias_correction;

  template <typename Args>
  explicit Lamb(const Args& a)
      : step{a.step},
        global_norm{a.global_norm},
        max_grad_norm{a.max_grad_norm},
        inv_scale{a.inv_scale},
        found_inf{a.found_inf},
        beta1(a.beta1),
        beta2(a.beta2),
        log_beta1(log(a.beta1)),
        log_beta2(log(a.beta2)),
        rest1(a.grad_averaging ? 1 - a.beta1 : 1),
        eps(a.eps),
        weight_decay(a.weight_decay),
        decoupled(a.decoupled != 0),
        bias_correction(a.bias_correction != 0) {}

  ANYOP_STEP bool Skips() const { return found_inf.IsSet(); }
  template <typename W>
  ANYOP_STEP LambUpdate<W> At(W, int64_t) const {
    const double norm = global_norm.Read(0), most = max_grad_norm.Read(0), number = step.Read(1);
    const double clipped = most > 0 && norm > most ? norm / most : 1;
    LambUpdate<W> s;
    s.scale = static_cast<W>(inv_scale.Read(1) / clipped);
    s.beta1 = static_cast<W>(beta1);
    s.rest1 = static_cast<W>(rest1);
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

// Lists: p, which is read, g, m, v, update.
template <typename W>
struct LambStage1Step {
  LambUpdate<W> update_of;

  ANYOP_STEP void operator()(W& p, W g, W& m, W& v, W& update) const {
    update = update_of(p, g, m, v);
  }
};
template <typename Single>
struct LambStage1 : Lamb<Single> {
  static constexpr unsigned kReads = 15, kWrites = 28;
  static constexpr bool kCountsTensors = false;
  using Lamb<Single>::Lamb;

  template <typename W>
  ANYOP_STEP LambStage1Step<W> At(W zero, int64_t n) const {
    return {Lamb<Single>::At(zero, n)};
  }
};

// Lists: p, update.
template <typename W>
struct LambStage2Step {
  W rate;
  ANYOP_STEP void operator()(W& p, W update) const { p -= rate * update; }
};
template <typename Single>
struct LambStage2 {
  static constexpr unsigned kReads = 3, kWrites = 1;
  static constexpr bool kCountsTensors = true;

  Single lr, found_inf;
  const float *norms, *update_norms;
  bool adapts;

  template <typename Args>
  LambStage2(const Args& a, const float* norms, const float* update_norms)
      : lr{a.lr},
        found_inf{a.found_inf},
        norms(norms),
        update_norms(update_norms),
        adapts(a.use_nvlamb || a.weight_decay != 0) {}

  ANYOP_STEP bool Skips() const { return found_inf.IsSet(); }
  template <typename W>
  ANYOP_STEP LambStage2Step<W> At(W, int64_t n) const {
    const double rate = lr.Read(0), p = adapts ? norms[n] : 0,
                 update = adapts ? update_norms[n] : 0;
    return {static_cast<W>(p != 0 && update != 0 ? rate * (p / update) : rate)};
  }
};

}  // namespace anyop

#endif  // ANYOP_OPS_MULTI_TENSOR_LAMB_STEP_H_
