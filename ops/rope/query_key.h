// SPDX-License-Identifier: Apache-2.0
// In what order queries and keys go, where the result of one may be the memory of the other.
#ifndef ANYOP_OPS_ROPE_QUERY_KEY_H_
#define ANYOP_OPS_ROPE_QUERY_KEY_H_

#include "rotary.h"

namespace anyop::cpu {

// heads[0] is q, heads[1] is k. A token's q and k are done one after the other: one whose result is
// the other's memory goes last.
inline int32_t OrderHeads(AnyopCall* call, Heads (&heads)[2]) {
  bool k_first = false;
  if (const int32_t status = OrderQueryKey(call, heads[0].x_tensor, heads[0].out_tensor,
                                           heads[1].x_tensor, heads[1].out_tensor, &k_first))
    return status;
  if (k_first) {
    const Heads q = heads[0];
    heads[0] = heads[1];
    heads[1] = q;
  }
  return kAnyopOk;
}

}  // namespace anyop::cpu

#endif  // ANYOP_OPS_ROPE_QUERY_KEY_H_
