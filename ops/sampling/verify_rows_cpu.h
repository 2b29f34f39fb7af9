// SPDX-License-Identifier: Apache-2.0
// Chains and trees of drafted tokens on the CPU: a thread has one, and reads one row of each.
#ifndef ANYOP_OPS_SAMPLING_VERIFY_ROWS_CPU_H_
#define ANYOP_OPS_SAMPLING_VERIFY_ROWS_CPU_H_

#include "filter_rows.h"
#include "verify_rows.h"

namespace anyop::sampling {

// w = what target has above draft, which w holds at first. Whether all are probabilities.
ANYOP_CPU_CLONES bool TakeRest(const float* target, int64_t V, float* w) {
  int bad = 0;
#pragma omp simd reduction(| : bad)
  for (int64_t v = 0; v < V; ++v) {
    bad |= !IsProb(target[v]) | !IsProb(w[v]);
    w[v] = RestOf(target[v], w[v]);
  }
  return !bad;
}

// drafted: Chains or Trees; draft: NULL where there is none.
template <typename Drafted>
int32_t RunVerify(AnyopCall* call, const Drafted& drafted, const AnyopTensor* target,
                  const AnyopTensor* draft) {
  const int64_t V = drafted.V, item_bytes = target->dtype_bits / 8;
  const AnyopDtype dtype = AnyopDtypeOf(target);
  const auto row_of = [=](const AnyopTensor* of, int64_t row, int64_t token) {
    return static_cast<const char*>(of->data) + (row * V + token) * item_bytes;
  };
  const auto at = [=](const AnyopTensor* of, int64_t row, int64_t token) {
    float x;
    WidenRow(dtype, row_of(of, row, token), 1, &x);
    return x;
  };
  return ForRows(call, drafted.B, V, [&](Row& row, int64_t b) {
    const End end = drafted.Walk(
        b, OneLane(), true, [&](int64_t r, int64_t token) { return at(target, r, token); },
        [&](int64_t r, int64_t token) { return at(draft, r, token); });
    if (!end.token) return;
    const Request request = {static_cast<uint64_t>(drafted.seed[b]),
                             static_cast<uint64_t>(drafted.offset[b])};
    WidenRow(dtype, row_of(target, end.target, 0), V, row.x);
    int32_t token = -1;
    for (bool less : {true, false}) {  // of the whole row where nothing is left
      if (less && end.draft >= 0) {
        WidenRow(dtype, row_of(draft, end.draft, 0), V, row.w);
      } else {
        std::fill_n(row.w, V, 0.0f);
      }
      if (!TakeRest(row.x, V, row.w)) break;
      if (less && end.node >= 0)
        for (int64_t v = 0; v < V; ++v)
          if (row.w[v] > 0 && drafted.IsRejected(b, end, v)) row.w[v] = 0;
      token = DrawToken(request, row.w, V);
      if (token >= 0) break;
    }
    *end.token = token;
  });
}

}  // namespace anyop::sampling

#endif  // ANYOP_OPS_SAMPLING_VERIFY_ROWS_CPU_H_
