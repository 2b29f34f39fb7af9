// SPDX-License-Identifier: Apache-2.0
// The numbers of the focal loss, and which of them make none.
#ifndef ANYOP_OPS_LOSS_FOCAL_NUMBERS_H_
#define ANYOP_OPS_LOSS_FOCAL_NUMBERS_H_

#include <cmath>
#include <cstdio>

#include "anyop/kernel.h"

namespace anyop {

constexpr int64_t kNoFocalLoss = -2;  // the target of a row without a loss

template <typename W>
struct FocalNumbers {
  W alpha, gamma, half_smoothing;

  template <typename Args>
  explicit FocalNumbers(const Args& args)
      : alpha(static_cast<W>(args.alpha)),
        gamma(static_cast<W>(args.gamma)),
        half_smoothing(static_cast<W>(args.smoothing / 2)) {}
};

template <typename Args>
int32_t CheckFocalNumbers(AnyopCall* call, const Args& args) {
  char text[112] = "";
  if (!(args.smoothing >= 0 && args.smoothing <= 1))
    std::snprintf(text, sizeof text, "smoothing is %g, expected a number from 0 to 1",
                  args.smoothing);
  if (!std::isfinite(args.alpha))
    std::snprintf(text, sizeof text, "alpha is %g, expected a finite number", args.alpha);
  if (!(args.gamma >= 0 && std::isfinite(args.gamma)))
    std::snprintf(text, sizeof text, "gamma is %g, expected a finite number of at least 0",
                  args.gamma);
  return text[0] ? call->fail(call, kAnyopValueError, text) : kAnyopOk;
}

}  // namespace anyop

#endif  // ANYOP_OPS_LOSS_FOCAL_NUMBERS_H_
