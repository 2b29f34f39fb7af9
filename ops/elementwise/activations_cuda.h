// SPDX-License-Identifier: Apache-2.0
// Activations and their derivatives on CUDA, of one element; float or double.
#pragma once

#include <cstring>

#include "anyop/cuda_map.h"

namespace anyop::cuda {
namespace {

__device__ inline float Power(float v) { return exp2f(v * 1.44269504088896341f); }
__device__ inline double Power(double v) { return exp(v); }
__device__ inline float Reciprocal(float v) { return __fdividef(1.0f, v); }
__device__ inline double Reciprocal(double v) { return 1 / v; }
__device__ inline float NormalCdf(float x) { return 0.5f * erfcf(x * -0.70710678f); }
__device__ inline double NormalCdf(double x) { return 0.5 * erfc(x * -0.70710678118654752); }
// What is multiplied with a slope that is 0 long before.
template <typename W>
__device__ W Bounded(W x, W bound) {
  return fmin(fmax(x, -bound), bound);
}

// 1 / (1 + e^-x) and its derivative, with one exponential, which does not overflow.
template <typename W>
struct Sigmoid {
  W value, slope;
  __device__ explicit Sigmoid(W x) {
    const W e = Power(-fabs(x)), r = Reciprocal(1 + e);
    value = x > 0 ? r : e * r;
    slope = e * r * r;
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
    return s.value + Bounded(x, W(88)) * s.slope;
  }
};

struct GeluErfForm {
  template <typename W>
  __device__ static W Value(W x) {
    return x * NormalCdf(x);
  }
  template <typename W>
  __device__ static W Slope(W x) {
    const W v = Bounded(x, W(40));
    return NormalCdf(x) + v * Power(v * v * W(-0.5)) * W(0.39894228040143268);
  }
};

// (1 + tanh(u)) / 2 = 1 / (1 + e^-2u), which does not cancel where x is far below 0.
struct GeluTanhForm {
  template <typename W>
  __device__ static W Value(W x) {
    return x * Sigmoid<W>(W(1.5957691216057308) * x * (1 + W(0.044715) * x * x)).value;
  }
  template <typename W>
  __device__ static W Slope(W x) {
    const W a = W(1.5957691216057308), b = W(0.044715);
    const Sigmoid<W> s(a * x * (1 + b * x * x));
    const W v = Bounded(x, W(40));
    return s.value + s.slope * (a * v * (1 + 3 * b * v * v));
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
