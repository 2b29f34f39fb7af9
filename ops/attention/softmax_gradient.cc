// SPDX-License-Identifier: Apache-2.0
// Vector loops of attention's gradient, compiled for each instruction set. A row stays in the
// cache; exponentials are powers of two.
#include "softmax_gradient.h"

#include "anyop/cpu/math.h"
#include "anyop/cpu/rows.h"

namespace anyop {
namespace {

using cpu::Apply;
using cpu::SumBlock;

template <typename T>
inline void ToWeights(T* x, int64_t n, ScoreForm<T> form, const T* bias, T lse, T* caps) {
  const T scale = form.scale, cap = form.softcap;
  if (caps) {
    const T share = scale / cap;
    Apply(n, [=](T v) { return cpu::Tanh(v * share); }, x, x);
    Apply(n, [](T v) { return 1 - v * v; }, caps, x);
    Apply(n, [=](T v) { return v * cap - lse; }, x, x);
  } else {
    Apply(n, [=](T v) { return v * scale - lse; }, x, x);
  }
  if (bias) Apply(n, [](T v, T b) { return v + b; }, x, x, bias);
  Apply(n, [](T v) { return cpu::Exp(v); }, x, x);
}

template <typename T>
inline void ToSlopes(const T* weight, int64_t n, T scale, const T* caps, T delta, T* grad) {
  Apply(n, [=](T w, T g) { return w * (g - delta) * scale; }, grad, weight, grad);
  if (caps) Apply(n, [](T g, T c) { return g * c; }, grad, grad, caps);
}

template <typename T>
inline double SumOfProducts(const T* a, const T* b, int64_t n) {
  double dot = 0;
  cpu::ForBlocks(n, [&](int64_t at, int64_t size) {
    dot += SumBlock(size, [](T x, T y) { return x * y; }, a + at, b + at);
  });
  return dot;
}

ANYOP_CPU_CLONES void ToWeightsFloat(float* x, int64_t n, ScoreForm<float> form, const float* bias,
                                     float lse, float* caps) {
  ToWeights(x, n, form, bias, lse, caps);
}
ANYOP_CPU_CLONES void ToWeightsDouble(double* x, int64_t n, ScoreForm<double> form,
                                      const double* bias, double lse, double* caps) {
  ToWeights(x, n, form, bias, lse, caps);
}
ANYOP_CPU_CLONES void ToSlopesFloat(const float* weight, int64_t n, float scale, const float* caps,
                                    float delta, float* grad) {
  ToSlopes(weight, n, scale, caps, delta, grad);
}
ANYOP_CPU_CLONES void ToSlopesDouble(const double* weight, int64_t n, double scale,
                                     const double* caps, double delta, double* grad) {
  ToSlopes(weight, n, scale, caps, delta, grad);
}
ANYOP_CPU_CLONES double DotFloat(const float* a, const float* b, int64_t n) {
  return SumOfProducts(a, b, n);
}
ANYOP_CPU_CLONES double DotDouble(const double* a, const double* b, int64_t n) {
  return SumOfProducts(a, b, n);
}

}  // namespace

void WeightsOf(float* x, int64_t n, ScoreForm<float> form, const float* bias, float lse,
               float* caps) {
  ToWeightsFloat(x, n, form, bias, lse, caps);
}
void WeightsOf(double* x, int64_t n, ScoreForm<double> form, const double* bias, double lse,
               double* caps) {
  ToWeightsDouble(x, n, form, bias, lse, caps);
}
void SlopesOf(const float* weight, int64_t n, ScoreForm<float> form, const float* caps, float delta,
              float* grad) {
  ToSlopesFloat(weight, n, form.scale, caps, delta, grad);
}
void SlopesOf(const double* weight, int64_t n, ScoreForm<double> form, const double* caps,
              double delta, double* grad) {
  ToSlopesDouble(weight, n, form.scale, caps, delta, grad);
}
double DotOf(const float* a, const float* b, int64_t n) { return DotFloat(a, b, n); }
double DotOf(const double* a, const double* b, int64_t n) { return DotDouble(a, b, n); }

}  // namespace anyop
