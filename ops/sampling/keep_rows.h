// SPDX-License-Identifier: Apache-2.0
// Rows of which top_k or top_p keeps some, on the CPU: others are masked, or those are scaled to a
// sum of 1.
#ifndef ANYOP_OPS_SAMPLING_KEEP_ROWS_H_
#define ANYOP_OPS_SAMPLING_KEEP_ROWS_H_

#include "filter_rows.h"

namespace anyop::sampling {

// The element itself, or `behind`, times factor. x may be out.
ANYOP_CPU_CLONES void WriteKept(const float* x, int64_t V, Place last, float factor, float behind,
                                float* out) {
  for (int64_t v = 0; v < V; ++v)
    out[v] = PlaceOf(x[v], static_cast<uint32_t>(v)) < last ? behind : x[v] * factor;
}

// is_probs: they are scaled; else others become -inf. Rows without a distribution become NaN.
inline int32_t RunKeep(AnyopCall* call, const AnyopTensor* x, const Keeps& keeps, int64_t B,
                       const AnyopTensor* out) {
  const cpu::Rows rows(x), to(out);
  return ForRows(call, B, keeps.V, [&](Row& row, int64_t b) {
    const int64_t V = keeps.V;
    const bool is_good = row.Read(rows.dtype(), rows[b], keeps.is_probs);
    const float share = keeps.top_p.data ? keeps.top_p[b] : 1;
    if (keeps.is_probs ? !is_good || share != share : row.most != row.most) {
      std::fill_n(row.x, V, NAN);
    } else {
      const int64_t k = keeps.top_k.data ? keeps.top_k[b] : 0;
      const Scale scale = Scale::OfProbs(row.most);
      if (keeps.is_probs) row.Weigh(scale);
      Place last = 0;
      if (k > 0 && k < V) last = row.KeepFirst(k);
      if (share < 1) last = row.KeepShare(share, 0, row.total());
      float factor = 1;
      if (keeps.is_probs) {
        row.Cut(last);
        factor = FactorOf(scale, row.total());
      }
      WriteKept(row.x, V, last, factor, keeps.is_probs ? 0 : -INFINITY, row.x);
    }
    cpu::Narrow(cpu::Types<float, cpu::float16, cpu::bfloat16>(), row.x, V, to.dtype(), to[b]);
  });
}

}  // namespace anyop::sampling

#endif  // ANYOP_OPS_SAMPLING_KEEP_ROWS_H_
