// SPDX-License-Identifier: Apache-2.0
// Both forms of gelu and their derivatives, of one element, and how a call chooses between them.
#ifndef ANYOP_OPS_ELEMENTWISE_GELU_FORMS_H_
#define ANYOP_OPS_ELEMENTWISE_GELU_FORMS_H_

#include "anyop/cpu/math.h"
#include "anyop/kernel.h"

namespace anyop::cpu {

// The exact function.
struct GeluErf {
  template <typename Wide>
  static Wide Value(Wide x) {
    return x * NormalCdf(x);
  }
  // The normal distribution and x times the density, which is 0 long before 40.
  template <typename Wide>
  static Wide Slope(Wide x) {
    const Wide v = Min(Max(x, Wide{-40}), Wide{40});
    const Wide exponent = v * v * static_cast<Wide>(-0.72134752044448170);  // log2(e) / 2
    return NormalCdf(x) + v * Exp2Negative(exponent) * static_cast<Wide>(0.39894228040143268);
  }
};

// (1 + tanh(u)) / 2 = 1 / (1 + e^-2u), which does not cancel where x is far below 0.
struct GeluTanh {
  template <typename Wide>
  static constexpr Wide kOuter = static_cast<Wide>(1.5957691216057308);  // sqrt(8 / pi)
  template <typename Wide>
  static constexpr Wide kCubic = static_cast<Wide>(0.044715);

  template <typename Wide>
  static Wide Value(Wide x) {
    return x * Sigmoid(kOuter<Wide> * x * (1 + kCubic<Wide> * x * x));
  }
  // Where the sigmoid's slope is 0, x is no longer needed.
  template <typename Wide>
  static Wide Slope(Wide x) {
    constexpr Wide a = kOuter<Wide>, b = kCubic<Wide>;
    const auto s = SigmoidWithSlope(a * x * (1 + b * x * x));
    const Wide v = Min(Max(x, Wide{-40}), Wide{40});
    return s.value + s.slope * (a * v * (1 + 3 * b * v * v));
  }
};

// Runs `erf()` or `tanh()`, as approximate says.
template <typename Erf, typename Tanh>
inline int32_t WithGelu(AnyopCall* call, const char* approximate, Erf erf, Tanh tanh) {
  if (__builtin_strcmp(approximate, "none") == 0) return erf();
  if (__builtin_strcmp(approximate, "tanh") == 0) return tanh();
  return call->fail(call, kAnyopValueError, "approximate is unknown, expected 'none' or 'tanh'");
}

}  // namespace anyop::cpu

#endif  // ANYOP_OPS_ELEMENTWISE_GELU_FORMS_H_
