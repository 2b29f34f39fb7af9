// SPDX-License-Identifier: Apache-2.0
// What draws are asked for, by the arguments of sample and sample_probs.
#ifndef ANYOP_OPS_SAMPLING_REQUESTS_H_
#define ANYOP_OPS_SAMPLING_REQUESTS_H_

#include "anyop/kernel.h"
#include "draw.h"

namespace anyop::sampling {

template <typename Args>
Requests RequestsOf(const Args& args, const AnyopTensor* temperature, bool is_probs,
                    bool top_k_first) {
  return {PerRowOf<int64_t>(args.seed),
          PerRowOf<int64_t>(args.offset),
          PerRowOf<int64_t>(args.rows),
          PerRowOf<int64_t>(args.top_k),
          PerRowOf<float>(temperature),
          PerRowOf<float>(args.top_p),
          PerRowOf<float>(args.min_p),
          args.N,
          args.V,
          is_probs,
          top_k_first};
}

inline int32_t CheckRows(AnyopCall* call, const Requests& requests, int64_t B) {
  if (requests.rows.data || requests.N == B || B == 0) return kAnyopOk;
  return call->fail(call, kAnyopValueError,
                    "seed has not one element for each row; expected that, or rows");
}

}  // namespace anyop::sampling

#endif  // ANYOP_OPS_SAMPLING_REQUESTS_H_
