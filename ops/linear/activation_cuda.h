// SPDX-License-Identifier: Apache-2.0
// The activations that a product may end in, with their derivatives, on CUDA; chosen when a kernel
// runs, the same for all its threads.
#pragma once

#include "../elementwise/activations_cuda.h"

namespace anyop::cuda {

enum class Activation : int { kNone, kRelu, kSigmoid, kSilu, kGelu, kGeluTanh };

namespace {

// kAnyopOk, or the status of a noted error.
inline int32_t ReadActivation(AnyopCall* call, const char* name, Activation* to) {
  constexpr const char* kNames[] = {"none", "relu", "sigmoid", "silu", "gelu", "gelu_tanh"};
  for (int i = 0; i < 6; ++i) {
    if (std::strcmp(name, kNames[i]) != 0) continue;
    *to = static_cast<Activation>(i);
    return kAnyopOk;
  }
  return call->fail(call, kAnyopValueError,
                    "activation is unknown, expected 'none', 'relu', 'sigmoid', 'silu', 'gelu' or "
                    "'gelu_tanh'");
}

// GELU, as approximate says.
inline int32_t ReadGelu(AnyopCall* call, const char* approximate, Activation* to) {
  return WithGelu(call, approximate, [&](auto form) {
    const bool tanh = std::is_same_v<decltype(form), GeluTanhForm>;
    *to = tanh ? Activation::kGeluTanh : Activation::kGelu;
    return kAnyopOk;
  });
}

struct ReluForm {
  template <typename W>
  __device__ static W Value(W v) {
    return v > 0 || v != v ? v : W(0);
  }
};
struct SigmoidForm {
  template <typename W>
  __device__ static W Value(W v) {
    return Sigmoid<W>(v).value;
  }
};
struct PlainForm {
  template <typename W>
  __device__ static W Value(W v) {
    return v;
  }
};

// f(activate), for many numbers: the code of one activation lies together.
template <typename F>
__device__ void WithActivation(Activation activation, const F& f) {
  switch (activation) {
    case Activation::kRelu:
      return f(ValueOf<ReluForm>());
    case Activation::kSigmoid:
      return f(ValueOf<SigmoidForm>());
    case Activation::kSilu:
      return f(ValueOf<SiluForm>());
    case Activation::kGelu:
      return f(ValueOf<GeluErfForm>());
    case Activation::kGeluTanh:
      return f(ValueOf<GeluTanhForm>());
    default:
      return f(ValueOf<PlainForm>());
  }
}
template <typename W>
__device__ W Activate(Activation activation, W v) {
  W value;
  WithActivation(activation, [&](auto activate) { value = activate(v); });
  return value;
}

template <typename W>
__device__ W SlopeOf(Activation activation, W v) {
  switch (activation) {
    case Activation::kRelu:  // 0 at 0, as torch's
      return v > 0 ? W(1) : v == v ? W(0) : v;
    case Activation::kSigmoid:
      return Sigmoid<W>(v).slope;
    case Activation::kSilu:
      return SiluForm::Slope(v);
    case Activation::kGelu:
      return GeluErfForm::Slope(v);
    case Activation::kGeluTanh:
      return GeluTanhForm::Slope(v);
    default:
      return W(1);
  }
}

}  // namespace
}  // namespace anyop::cuda
