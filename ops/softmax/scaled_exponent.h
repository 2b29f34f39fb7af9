// SPDX-License-Identifier: Apache-2.0
// The exponents of softmax(scale * x), for CPU and CUDA, without a product that a huge scale takes
// far from the greatest or beyond the numbers.
#ifndef ANYOP_OPS_SOFTMAX_SCALED_EXPONENT_H_
#define ANYOP_OPS_SOFTMAX_SCALED_EXPONENT_H_

#include <limits>

namespace anyop {

// exp(scale * v - m), m the greatest scale * v, is 2 to the power of (sign * v - n) * factor, n the
// greatest sign * v: 0 there, whatever the scale is.
template <typename Wide>
struct Exponent {
  Wide sign, factor;

  explicit Exponent(double scale) : sign(scale < 0 ? Wide(-1) : Wide(1)) {
    constexpr Wide kLog2E = static_cast<Wide>(1.4426950408889634);
    constexpr double kMost = std::numeric_limits<double>::max();
    constexpr Wide kMostWide = std::numeric_limits<Wide>::max();
    const double size = scale * sign;
    factor = static_cast<Wide>(size) * kLog2E;
    if (factor > kMostWide && size <= kMost) factor = kMostWide;  // but of no finite scale infinity
  }
};

}  // namespace anyop

#endif  // ANYOP_OPS_SOFTMAX_SCALED_EXPONENT_H_
