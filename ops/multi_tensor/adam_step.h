// SPDX-License-Identifier: Apache-2.0
// What one step of Adam does to one element, on the CPU and on CUDA.
#ifndef ANYOP_OPS_MULTI_TENSOR_ADAM_STEP_H_
#define ANYOP_OPS_MULTI_TENSOR_ADAM_STEP_H_

#include <math.h>

#include "anyop/ops/multi_tensor_adam.h"

#if defined(__CUDACC__) || defined(__HIPCC__)
#define ANYOP_ADAM_BOTH __host__ __device__
#else
#define ANYOP_ADAM_BOTH
#endif

namespace anyop {

// The attributes of a call.
struct AdamRates {
  double beta1, beta2, log_beta1, log_beta2, eps, weight_decay;
  bool decoupled, bias_correction, maximize;

  explicit AdamRates(const MultiTensorAdamArgs& a)
      : beta1(a.beta1),
        beta2(a.beta2),
        log_beta1(log(a.beta1)),
        log_beta2(log(a.beta2)),
        eps(a.eps),
        weight_decay(a.weight_decay),
        decoupled(a.decoupled != 0),
        bias_correction(a.bias_correction != 0),
        maximize(a.maximize != 0) {}
};

// 1 - beta^step, without losing digits where that is small.
ANYOP_ADAM_BOTH inline double BiasOf(double log_beta, double step) {
  return -expm1(step * log_beta);
}

// All of a step that is the same for each element, in the type that elements are computed in.
template <typename W>
struct AdamStep {
  W lr, scale, beta1, rest1, beta2, rest2, eps, l2, decay;
  W mean_factor, root_factor;  // 1 / (1 - beta1^step), 1 / sqrt(1 - beta2^step)

  AdamStep() = default;
  ANYOP_ADAM_BOTH AdamStep(const AdamRates& r, double lr, double step, double inv_scale)
      : lr(static_cast<W>(lr)),
        scale(static_cast<W>(r.maximize ? -inv_scale : inv_scale)),
        beta1(static_cast<W>(r.beta1)),
        rest1(static_cast<W>(1 - r.beta1)),
        beta2(static_cast<W>(r.beta2)),
        rest2(static_cast<W>(1 - r.beta2)),
        eps(static_cast<W>(r.eps)),
        l2(static_cast<W>(r.decoupled ? 0 : r.weight_decay)),
        decay(static_cast<W>(r.decoupled ? r.weight_decay : 0)),
        mean_factor(static_cast<W>(r.bias_correction ? 1 / BiasOf(r.log_beta1, step) : 1)),
        root_factor(static_cast<W>(r.bias_correction ? 1 / sqrt(BiasOf(r.log_beta2, step)) : 1)) {}
};

}  // namespace anyop

#endif  // ANYOP_OPS_MULTI_TENSOR_ADAM_STEP_H_
