// SPDX-License-Identifier: Apache-2.0
// What rope and its relatives refuse on every device, for these things are known without the data.
#ifndef ANYOP_OPS_ROPE_ROTARY_CHECKS_H_
#define ANYOP_OPS_ROPE_ROTARY_CHECKS_H_

#include <cstdio>

#include "anyop/kernel.h"

namespace anyop {

// Tokens whose row of the table is their place in a sequence of S.
inline int32_t CheckLength(AnyopCall* call, int64_t S, int64_t P) {
  if (S <= P) return kAnyopOk;
  char message[200];
  std::snprintf(message, sizeof message,
                "x has sequences of S=%lld tokens, expected at most P=%lld, the rows of cos and "
                "sin: make longer tables, or pass positions",
                static_cast<long long>(S), static_cast<long long>(P));
  return call->fail(call, kAnyopValueError, message);
}

// Whether a result lies in the memory of another tensor.
inline bool IsMemoryOf(const AnyopTensor* out, const AnyopTensor* other) {
  for (int d = 0; d < out->ndim; ++d) {
    if (out->shape[d] == 0) return false;  // its address means nothing
  }
  return out->data == other->data;
}

// Whose result is the other's memory goes last: sets *k_first.
inline int32_t OrderQueryKey(AnyopCall* call, const AnyopTensor* q, const AnyopTensor* q_out,
                             const AnyopTensor* k, const AnyopTensor* k_out, bool* k_first) {
  *k_first = IsMemoryOf(q_out, k);
  if (!*k_first || !IsMemoryOf(k_out, q)) return kAnyopOk;
  return call->fail(call, kAnyopValueError,
                    "q_out is the memory of k and k_out that of q, expected each its own or "
                    "other memory: exchange them");
}

}  // namespace anyop

#endif  // ANYOP_OPS_ROPE_ROTARY_CHECKS_H_
