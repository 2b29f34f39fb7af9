// SPDX-License-Identifier: Apache-2.0
// In what order queries and keys go, where the result of one may be the memory of the other.
#ifndef ANYOP_OPS_ROPE_QUERY_KEY_H_
#define ANYOP_OPS_ROPE_QUERY_KEY_H_

#include "rotary.h"

namespace anyop::cpu {

inline bool Writes(const Heads& one, const Heads& other) {
  bool empty = false;  // whose address means nothing
  for (int d = 0; d < one.x_tensor->ndim; ++d) empty = empty || one.x_tensor->shape[d] == 0;
  return !empty && one.out_tensor->data == other.x_tensor->data;
}

// heads[0] is q, heads[1] is k. A token's q and k are done one after the other: one whose result is
// the other's memory goes last.
inline int32_t OrderHeads(AnyopCall* call, Heads (&heads)[2]) {
  const bool on_k = Writes(heads[0], heads[1]), on_q = Writes(heads[1], heads[0]);
  if (on_k && on_q)
    return call->fail(call, kAnyopValueError,
                      "q_out is the memory of k and k_out that of q, expected each its own or "
                      "other memory: exchange them");
  if (on_k) {
    const Heads q = heads[0];
    heads[0] = heads[1];
    heads[1] = q;
  }
  return kAnyopOk;
}

}  // namespace anyop::cpu

#endif  // ANYOP_OPS_ROPE_QUERY_KEY_H_
