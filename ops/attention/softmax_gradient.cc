// SPDX-License-Identifier: Apache-2.0
// Vector loops of attention's gradient, compiled for each instruction set. A row stays in the
// cache; exponentials are powers of two.
#include "softmax_gradient.h"

#include "anyop/cpu_math.h"
#include "anyop/cpu_rows.h"

namespace anyop {
namespace {

using cpu::Apply;
using cpu::FoldBlock;
using cpu::kLog2E;
using cpu::SumBlock;

template <typename T>
inline void ToWeights(T* x, int64_t n, T scale, const T* bias) {
  const T factor = scale * kLog2E<T>;
  if (bias) {
    Apply(n, [factor](T v, T b) { return v * factor + b * kLog2E<T>; }, x, x, bias);
  } else {
    Apply(n, [factor](T v) { return v * factor; }, x, x);
  }
  constexpr T kNothing = -cpu::Bits<T>::kInfinity;
  const auto greater = [](T a, T b) { return a < b ? b : a; };
  const T most = FoldBlock(kNothing, greater, [](T v) { return v; }, n, x);
  const T base = most == kNothing ? 0 : most;
  Apply(n, [base](T v) { return cpu::Exp2Negative(v - base); }, x, x);
  double sum = 0;
  cpu::ForBlocks(
      n, [&](int64_t at, int64_t size) { sum += SumBlock(size, [](T v) { return v; }, x + at); });
  const T share = sum == 0 ? T(0) : static_cast<T>(1 / sum);
  Apply(n, [share](T v) { return v * share; }, x, x);
}

template <typename T>
inline void ToSlopes(const T* weight, int64_t n, T scale, T* grad) {
  double dot = 0;
  cpu::ForBlocks(n, [&](int64_t at, int64_t size) {
    dot += SumBlock(
        size, [](T w, T g) { return w * g; }, weight + at, static_cast<const T*>(grad + at));
  });
  const T mean = static_cast<T>(dot);
  Apply(n, [=](T w, T g) { return w * (g - mean) * scale; }, grad, weight, grad);
}

ANYOP_CPU_CLONES void ToWeightsFloat(float* x, int64_t n, float scale, const float* bias) {
  ToWeights(x, n, scale, bias);
}
ANYOP_CPU_CLONES void ToWeightsDouble(double* x, int64_t n, double scale, const double* bias) {
  ToWeights(x, n, scale, bias);
}
ANYOP_CPU_CLONES void ToSlopesFloat(const float* weight, int64_t n, float scale, float* grad) {
  ToSlopes(weight, n, scale, grad);
}
ANYOP_CPU_CLONES void ToSlopesDouble(const double* weight, int64_t n, double scale, double* grad) {
  ToSlopes(weight, n, scale, grad);
}

}  // namespace

void SoftmaxOf(float* x, int64_t n, float scale, const float* bias) {
  ToWeightsFloat(x, n, scale, bias);
}
void SoftmaxOf(double* x, int64_t n, double scale, const double* bias) {
  ToWeightsDouble(x, n, scale, bias);
}
void SoftmaxGradient(const float* weight, int64_t n, float scale, float* grad) {
  ToSlopesFloat(weight, n, scale, grad);
}
void SoftmaxGradient(const double* weight, int64_t n, double scale, double* grad) {
  ToSlopesDouble(weight, n, scale, grad);
}

}  // namespace anyop
