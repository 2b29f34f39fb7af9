// SPDX-License-Identifier: Apache-2.0
// The activations that a product may end in, with their derivatives, and how a call chooses one.
#pragma once

#include "../elementwise/gelu_forms.h"

namespace anyop::cpu {

enum class Activation { kNone, kRelu, kSigmoid, kSilu, kGelu, kGeluTanh };

struct NoActivation {
  template <typename Wide>
  static Wide Value(Wide x) {
    return x;
  }
  template <typename Wide>
  static Wide Slope(Wide) {
    return 1;
  }
};
struct ReluForm {  // the slope at 0 is 0, as torch's
  template <typename Wide>
  static Wide Value(Wide x) {
    return Max(x, Wide{0});
  }
  template <typename Wide>
  static Wide Slope(Wide x) {
    return x > 0 ? Wide{1} : x == x ? Wide{0} : x;
  }
};
struct SigmoidForm {
  template <typename Wide>
  static Wide Value(Wide x) {
    return x == x ? Sigmoid(x) : x;
  }
  template <typename Wide>
  static Wide Slope(Wide x) {
    return x == x ? SigmoidWithSlope(x).slope : x;
  }
};
struct SiluForm {
  template <typename Wide>
  static Wide Value(Wide x) {
    return x * Sigmoid(x);
  }
  template <typename Wide>
  static Wide Slope(Wide x) {
    return SiluSlope(x);
  }
};

// kAnyopOk, or the status of a noted error.
inline int32_t ReadActivation(AnyopCall* call, const char* name, Activation* to) {
  constexpr const char* kNames[] = {"none", "relu", "sigmoid", "silu", "gelu", "gelu_tanh"};
  for (int i = 0; i < 6; ++i) {
    if (__builtin_strcmp(name, kNames[i]) != 0) continue;
    *to = static_cast<Activation>(i);
    return kAnyopOk;
  }
  return call->fail(call, kAnyopValueError,
                    "activation is unknown, expected 'none', 'relu', 'sigmoid', 'silu', 'gelu' or "
                    "'gelu_tanh'");
}

// Calls run(Form()).
template <typename Run>
inline void WithActivation(Activation activation, Run run) {
  switch (activation) {
    case Activation::kNone:
      return run(NoActivation());
    case Activation::kRelu:
      return run(ReluForm());
    case Activation::kSigmoid:
      return run(SigmoidForm());
    case Activation::kSilu:
      return run(SiluForm());
    case Activation::kGelu:
      return run(GeluErf());
    case Activation::kGeluTanh:
      return run(GeluTanh());
  }
}

}  // namespace anyop::cpu
