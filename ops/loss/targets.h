// SPDX-License-Identifier: Apache-2.0
// Looks for targets outside the classes before anything is written.
#ifndef ANYOP_OPS_LOSS_TARGETS_H_
#define ANYOP_OPS_LOSS_TARGETS_H_

#include <cstdio>

#include "anyop/kernel.h"

namespace anyop {

// Classes by row, of int32 or int64.
struct Targets {
  const void* data;
  bool narrow;
  int64_t ignored;  // a row of this target has no loss

  Targets(const AnyopTensor* tensor, int64_t ignore_index)
      : data(tensor->data), narrow(tensor->dtype_bits == 32), ignored(ignore_index) {}
  int64_t operator[](int64_t row) const {
    return narrow ? static_cast<const int32_t*>(data)[row] : static_cast<const int64_t*>(data)[row];
  }
};

// kAnyopOk, or the noted error of the first row whose target is neither in [least, V) nor ignored.
inline int32_t CheckTargets(AnyopCall* call, const AnyopTensor& tensor, const Targets& targets,
                            int64_t rows, int64_t V, int64_t least = 0) {
  int64_t row = 0;
  while (row < rows &&
         ((targets[row] >= least && targets[row] < V) || targets[row] == targets.ignored))
    ++row;
  if (row == rows) return kAnyopOk;
  const auto target = static_cast<long long>(targets[row]);
  char place[160] = "", rest[160], message[320];
  for (int32_t d = tensor.ndim - 1; d >= 0 && place[100] == 0; --d) {
    std::snprintf(rest, sizeof rest, "%s", place);
    std::snprintf(place, 120, rest[0] ? "%lld, %.90s" : "%lld",
                  static_cast<long long>(row % tensor.shape[d]), rest);
    row /= tensor.shape[d];
  }
  std::snprintf(message, sizeof message,
                "target%s%s%s is %lld, expected %lld <= target < %lld, or %lld to ignore the row",
                *place ? "[" : "", place, *place ? "]" : "", target, static_cast<long long>(least),
                static_cast<long long>(V), static_cast<long long>(targets.ignored));
  return call->fail(call, kAnyopIndexError, message);
}

}  // namespace anyop

#endif  // ANYOP_OPS_LOSS_TARGETS_H_
