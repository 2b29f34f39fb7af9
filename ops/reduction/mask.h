// SPDX-License-Identifier: Apache-2.0
// Reads elements of a mask of any dtype.
#ifndef ANYOP_OPS_REDUCTION_MASK_H_
#define ANYOP_OPS_REDUCTION_MASK_H_

#include "anyop/cpu.h"

namespace anyop::cpu {

// Whether the element at the index is other than 0 (of either sign).
inline bool IsSet(const AnyopTensor* mask, int64_t index) {
  const bool floating = IsFloating(AnyopDtypeOf(mask));
  uint64_t bits = 0;
  const int bytes = mask->dtype_bits / 8;
  __builtin_memcpy(&bits, static_cast<const char*>(mask->data) + index * bytes, bytes);
  return (floating ? bits << (65 - mask->dtype_bits) : bits) != 0;
}

}  // namespace anyop::cpu

#endif  // ANYOP_OPS_REDUCTION_MASK_H_
