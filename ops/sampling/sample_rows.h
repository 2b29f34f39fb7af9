// SPDX-License-Identifier: Apache-2.0
// Draws tokens from rows of logits or of probabilities on the CPU.
#ifndef ANYOP_OPS_SAMPLING_SAMPLE_ROWS_H_
#define ANYOP_OPS_SAMPLING_SAMPLE_ROWS_H_

#include "filter_rows.h"
#include "requests.h"

namespace anyop::sampling {

inline int32_t DrawFrom(Row* row, const Requests& requests, const Request& request,
                        float* logprob) {
  if (request.k == 1 && !logprob) return static_cast<int32_t>(TokenOf(row->KeepFirst(1)));
  const Scale scale = requests.is_probs ? Scale::OfProbs(row->most)
                                        : Scale::OfLogits(row->most, request.temperature);
  row->Weigh(scale);
  uint64_t total = logprob || request.HasTopP() ? row->total() : 0;
  const uint64_t all = total;
  Place last = request.k ? row->KeepFirst(request.k) : 0;
  int32_t token = static_cast<int32_t>(TokenOf(last));
  if (request.k != 1) {
    if (last) row->Cut(last);
    if (request.HasTopP()) {
      if (last && requests.top_k_first) total = row->total();
      const Place share = row->KeepShare(request.top_p, requests.top_k_first ? last : 0, total);
      if (share > last) row->Cut(share);
    }
    if (request.min_p > 0) row->Drop(request.min_p);
    token = DrawToken(request, row->w, row->V);
  }
  if (logprob) *logprob = LogShare(scale, row->x[token], request.temperature, all);
  return token;
}

// logprob: NULL where not wanted.
inline int32_t RunSample(AnyopCall* call, const AnyopTensor* x, const Requests& requests, int64_t B,
                         int32_t* tokens, float* logprob) {
  if (const int32_t status = CheckRows(call, requests, B)) return status;
  const cpu::Rows rows(x);
  return ForRows(call, B, requests.V, [&](Row& row, int64_t b) {
    const Request request = requests[b];
    tokens[b] = -1;
    if (logprob) logprob[b] = NAN;
    if (!request.is_good || !row.Read(rows.dtype(), rows[request.row], requests.is_probs)) return;
    tokens[b] = DrawFrom(&row, requests, request, logprob ? logprob + b : nullptr);
  });
}

}  // namespace anyop::sampling

#endif  // ANYOP_OPS_SAMPLING_SAMPLE_ROWS_H_
