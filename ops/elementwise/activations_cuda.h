// SPDX-License-Identifier: Apache-2.0
// Activations and their derivatives on CUDA, of one element; float or double.
#pragma once

#include <cstring>

#include "anyop/cuda/map.h"

namespace anyop::cuda {
namespace {

// What is multiplied with something that is 0 long before.
template <typename W>
__device__ W Bounded(W x, double bound) {
  return fmin(fmax(x, W(-bound)), W(bound));
}

// 1 / (1 + e^-x) and its derivative, with one exponential. Where that is infinite, both are 0.
template <typename W>
struct Sigmoid {
  W value, slope;
  __device__ explicit Sigmoid(W x) {
    const W e = Exponential(-x);
    value = Reciprocal(1 + e);
    slope = fmin(e, W(sizeof(W) == sizeof(float) ? 1e38 : 1e300)) * value * value;
  }
};

struct SiluForm {
  template <typename W>
  __device__ static W Value(W x) {
    return x * Sigmoid<W>(x).value;
  }
  template <typename W>
  __device__ static W Slope(W x) {
    const Sigmoid<W> s(x);
    return s.value + Bounded(x, 88) * s.slope;
  }
};

// The normal distribution at x and its density, times sqrt(2 pi).
template <typename W>
struct Normal {
  W below, density;
  __device__ explicit Normal(W x);
};
// At -|x| the distribution is the density times t p(t), t = 1 / (1 + 0.3 |x|): to 1.3e-7 of its
// value (our own fit), and as the exponent, whose rounding grows with x^2.
template <>
__device__ inline Normal<float>::Normal(float x) : density(PowerOfTwo(x * x * -0.721347520f)) {
  constexpr float kRatio[] = {0.0360362269f, -0.158713326f, 0.208964124f, -0.0560954846f,
                              0.12984322f,   0.0995231196f, 0.120816886f, 0.119625166f};
  const float t = Reciprocal(fmaf(0.3f, fabsf(x), 1.0f));
  float p = kRatio[0];
#pragma unroll
  for (int i = 1; i < 8; ++i) p = fmaf(p, t, kRatio[i]);
  const float tail = density * (t * p);
  below = x > 0 ? 1 - tail : tail;
}
template <>
__device__ inline Normal<double>::Normal(double x)
    : below(0.5 * erfc(x * -0.70710678118654752)), density(exp(x * x * -0.5)) {}

struct GeluErfForm {
  template <typename W>
  __device__ static W Value(W x) {
    return x * Normal<W>(x).below;
  }
  template <typename W>
  __device__ static W Slope(W x) {
    const Normal<W> n(x);
    return n.below + Bounded(x, 40) * n.density * W(0.39894228040143268);
  }
};

// (1 + tanh(u)) / 2 = 1 / (1 + e^-2u), which does not cancel where x is far below 0.
struct GeluTanhForm {
  template <typename W>
  __device__ static W Value(W x) {
    const W a = W(1.5957691216057308), b = a * W(0.044715);
    return x * Sigmoid<W>(x * (a + b * (x * x))).value;
  }
  template <typename W>
  __device__ static W Slope(W x) {
    const W a = W(1.5957691216057308), b = a * W(0.044715);
    const Sigmoid<W> s(x * (a + b * (x * x)));
    const W v = Bounded(x, 40);
    return s.value + s.slope * (v * (a + 3 * b * (v * v)));
  }
};

template <typename Form>
struct ValueOf {
  template <typename W>
  __device__ W operator()(W x) const {
    return Form::Value(x);
  }
};
template <typename Form>
struct GradientOf {
  template <typename W>
  __device__ W operator()(W g, W x) const {
    return g * Form::Slope(x);
  }
};
template <typename Form>
struct ValueTimes {
  template <typename W>
  __device__ W operator()(W gate, W value) const {
    return Form::Value(gate) * value;
  }
};
// grad_out, gate, value to the gradients of gate and value.
template <typename Form>
struct GradientsTimes {
  template <typename W>
  __device__ void operator()(const W (&in)[3], W (&out)[2]) const {
    out[0] = in[0] * in[2] * Form::Slope(in[1]);
    out[1] = in[0] * Form::Value(in[1]);
  }
};

// x (* 2*D) to out (* D), and back.
template <typename Form>
int32_t RunTimes(AnyopCall* call, const AnyopTensor* x, const AnyopTensor* out) {
  const HalfOf gate(x, 0), value(x, 1);
  return RunFloatMap(call, ValueTimes<Form>(), {&gate.tensor, &value.tensor}, out);
}
template <typename Form>
int32_t RunTimesGradient(AnyopCall* call, const AnyopTensor* grad_out, const AnyopTensor* x,
                         const AnyopTensor* grad_x) {
  const HalfOf gate(x, 0), value(x, 1), grad_gate(grad_x, 0), grad_value(grad_x, 1);
  return RunFloatMaps(call, GradientsTimes<Form>(), {grad_out, &gate.tensor, &value.tensor},
                      {&grad_gate.tensor, &grad_value.tensor});
}

// Runs run(form), as approximate says.
template <typename Run>
int32_t WithGelu(AnyopCall* call, const char* approximate, const Run& run) {
  if (std::strcmp(approximate, "none") == 0) return run(GeluErfForm());
  if (std::strcmp(approximate, "tanh") == 0) return run(GeluTanhForm());
  return call->fail(call, kAnyopValueError, "approximate is unknown, expected 'none' or 'tanh'");
}

}  // namespace
}  // namespace anyop::cuda
