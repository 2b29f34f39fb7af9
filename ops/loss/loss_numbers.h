// SPDX-License-Identifier: Apache-2.0
// Refuses numbers that make no loss.
#ifndef ANYOP_OPS_LOSS_LOSS_NUMBERS_H_
#define ANYOP_OPS_LOSS_LOSS_NUMBERS_H_

#include <cmath>
#include <cstdio>

#include "anyop/kernel.h"

namespace anyop {

inline int32_t CheckLossNumbers(AnyopCall* call, double label_smoothing, double softcap) {
  char text[112] = "";
  if (!(softcap >= 0 && std::isfinite(softcap)))
    std::snprintf(text, sizeof text, "softcap is %g, expected a finite number of at least 0",
                  softcap);
  if (!(label_smoothing >= 0 && label_smoothing <= 1))
    std::snprintf(text, sizeof text, "label_smoothing is %g, expected a number from 0 to 1",
                  label_smoothing);
  return text[0] ? call->fail(call, kAnyopValueError, text) : kAnyopOk;
}

}  // namespace anyop

#endif  // ANYOP_OPS_LOSS_LOSS_NUMBERS_H_
