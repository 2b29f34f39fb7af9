// SPDX-License-Identifier: Apache-2.0
// One row of softmax(scale * x), of which a mask may leave elements out, and its gradient.
#ifndef ANYOP_OPS_SOFTMAX_SCALED_ROW_H_
#define ANYOP_OPS_SOFTMAX_SCALED_ROW_H_

#include "anyop/cpu/math.h"
#include "anyop/cpu/rows.h"
#include "scaled_exponent.h"

namespace anyop::cpu {

// The greatest, the sum of exponentials, the result; the second and third read the row from the
// cache. mask: none, or one reader, of which all but 0 leaves an element out, whatever it holds.
template <typename Wide, typename... Mask>
inline void ScaledSoftmaxRow(int64_t n, double scale, RowWriter<Wide>& to, RowReader<Wide>& in,
                             Mask&... mask) {
  constexpr Wide kNothing = -Bits<Wide>::kInfinity;
  const Exponent<Wide> exponent(scale);
  const Wide sign = exponent.sign, times = exponent.factor;
  const auto signed_value = [=](Wide v, auto... m) {
    return (... || (m != 0)) ? kNothing : v * sign;
  };
  const auto greater = [](Wide a, Wide b) { return a < b ? b : a; };
  Wide most = kNothing;
  ForBlocks(n, [&](int64_t at, int64_t size) {
    most = FoldBlock(most, greater, signed_value, size, in.Read(at, size), mask.Read(at, size)...);
  });
  const auto part = [=](Wide factor) {
    return [=](Wide v, auto... m) {
      const Wide p = Exp2Negative((v * sign - most) * times) * factor;
      return (... || (m != 0)) ? Wide{0} : p;
    };
  };
  const Wide sum = static_cast<Wide>(Sum(n, part(1), in, mask...));
  MapRow(n, part(1 / sum), to, in, mask...);  // where all are left out, 1 / 0 is not used
}

// The gradient of a row from its result y, that of 16-bit floats in registers. width: so many
// elements, n or more, may be written, for whole vectors; those behind n are without meaning.
template <typename T>
inline void ScaledSoftmaxGradientInRegisters(int64_t n, int64_t width, float scale, const T* g,
                                             const T* y, T* to) {
  double sum = 0;
  const auto product = [](const auto& g, const auto& y) { return g * y; };
  ForBlocks(n, [&](int64_t at, int64_t size) { sum += SumHalves(size, product, g + at, y + at); });
  const float all = static_cast<float>(sum);
  Apply(width, [=](const auto& g, const auto& y) { return (g - all) * y * scale; }, to, g, y);
}
template <typename Wide>
inline void ScaledSoftmaxGradientRow(int64_t n, int64_t width, double scale, AnyopDtype dtype,
                                     const char* grad, const char* out, char* to) {
  const Wide factor = static_cast<Wide>(scale);
  if constexpr (kDtype<Wide> == kAnyopFloat32) {
    const auto in_registers = [&](auto zero) {
      using T = decltype(zero);
      ScaledSoftmaxGradientInRegisters(n, width, factor, reinterpret_cast<const T*>(grad),
                                       reinterpret_cast<const T*>(out), reinterpret_cast<T*>(to));
    };
    if (dtype == kAnyopFloat16 && AddsHalves<float16>()) return in_registers(float16());
    if (dtype == kAnyopFloat32 && AddsHalves<float>()) return in_registers(float());
    if (dtype == kAnyopBFloat16 && AddsHalves<bfloat16>()) return in_registers(bfloat16());
  }
  RowReader<Wide> gradient(dtype, grad, width), y(dtype, out, width);
  RowWriter<Wide> result(dtype, to);
  const Wide sum = static_cast<Wide>(Sum(n, [](Wide g, Wide y) { return g * y; }, gradient, y));
  MapRow(width, [=](Wide g, Wide y) { return (g - sum) * y * factor; }, result, gradient, y);
}

// What lies behind column n of a row of D elements, as 0.
inline void ZeroRest(const Rows& out, int64_t row, int64_t n, int64_t D, int item_bytes) {
  __builtin_memset(out[row] + n * item_bytes, 0, (D - n) * item_bytes);
}

}  // namespace anyop::cpu

#endif  // ANYOP_OPS_SOFTMAX_SCALED_ROW_H_
