// SPDX-License-Identifier: Apache-2.0
// What one step of NovoGrad does to one element, and to the norm of a tensor.
#ifndef ANYOP_OPS_MULTI_TENSOR_NOVOGRAD_STEP_H_
#define ANYOP_OPS_MULTI_TENSOR_NOVOGRAD_STEP_H_

#include "anyop/ops/multi_tensor_novograd.h"
#include "step.h"

namespace anyop {

template <typename W>
struct NovogradStep {
  W lr, scale, l2, decay, beta1, rest, mean_factor;  // scale: by the norm where it is inside

  ANYOP_STEP void operator()(W& p, W g, W& m) const {
    m = beta1 * m + rest * (g * scale + l2 * p);
    p -= lr * (m * mean_factor + decay * p);
  }
};

template <typename Single>
struct Novograd {
  static constexpr unsigned kReads = 7, kWrites = 5;
  static constexpr bool kCountsTensors = true;

  Single lr, step, inv_scale, found_inf;
  float* norms;
  double beta1, beta2, log_beta1, log_beta2, rest, eps, weight_decay;
  bool bias_correction, inside, maximum, begins;  // begins: in step 1 norms are not read

  explicit Novograd(const MultiTensorNovogradArgs& a)
      : lr{a.lr},
        step{a.step},
        inv_scale{a.inv_scale},
        found_inf{a.found_inf},
        norms(static_cast<float*>(a.norms->data)),
        beta1(a.beta1),
        beta2(a.beta2),
        log_beta1(log(a.beta1)),
        log_beta2(log(a.beta2)),
        rest(a.grad_averaging ? 1 - a.beta1 : 1),
        eps(a.eps),
        weight_decay(a.weight_decay),
        bias_correction(a.bias_correction != 0),
        inside(a.reg_inside_moment != 0),
        maximum(a.norm_type == 0),
        begins(!a.init_zero) {}

  ANYOP_STEP bool Skips() const { return found_inf.IsSet(); }

  // norm: of the gradients of tensor n, scaled.
  ANYOP_STEP void operator()(int64_t n, double norm) const {
    if (Skips()) return;
    if (begins && step.Read(1) <= 1) {
      norms[n] = static_cast<float>(norm);
      return;
    }
    const double old = norms[n], part = 1 - beta2;
    norms[n] = static_cast<float>(maximum ? beta2 * old + part * norm
                                          : sqrt(beta2 * old * old + part * norm * norm));
  }
  template <typename W>
  ANYOP_STEP NovogradStep<W> At(W, int64_t n) const {
    const double number = step.Read(1);
    const double mean_bias = bias_correction ? BiasOf(log_beta1, number) : 1;
    const double root_bias = bias_correction ? sqrt(BiasOf(log_beta2, number)) : 1;
    const double norm = norms[n] / root_bias + eps;
    NovogradStep<W> s;
    s.lr = static_cast<W>(lr.Read(0));
    s.scale = static_cast<W>(inv_scale.Read(1) / (inside ? norm : 1));
    s.l2 = static_cast<W>(inside ? weight_decay : 0);
    s.decay = static_cast<W>(inside ? 0 : weight_decay);
    s.beta1 = static_cast<W>(beta1);
    s.rest = static_cast<W>(rest);
    s.mean_factor = static_cast<W>(1 / (inside ? mean_bias : mean_bias * norm));
    return s;
  }
};

}  // namespace anyop

#endif  // ANYOP_OPS_MULTI_TENSOR_NOVOGRAD_STEP_H_
