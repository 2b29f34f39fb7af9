// SPDX-License-Identifier: Apache-2.0
// moe_permute and moe_permute_backward on the CPU: threads take rows of the result.
#include "anyop/ops/moe_permute.h"

#include <algorithm>
#include <cstring>

#include "anyop/ops/moe_permute_backward.h"
#include "token_sums.h"

extern "C" int32_t anyop_moe_permute_cpu(const MoePermuteArgs* args, AnyopCall* call) {
  const int64_t N = args->N, slots = args->T * args->top_k,
                bytes = args->H * (args->x->dtype_bits / 8);
  const auto* order = static_cast<const int32_t*>(args->order->data);
  const auto* from = static_cast<const char*>(args->x->data);
  auto* to = static_cast<char*>(args->out->data);
  if (N == 0 || bytes == 0) return kAnyopOk;
  anyop::ParallelFor(call, N, 65536 / bytes + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (order[i] < 0 || order[i] >= slots) {
        std::memset(to + i * bytes, 0, static_cast<size_t>(bytes));
      } else {
        std::memcpy(to + i * bytes, from + order[i] / args->top_k * bytes,
                    static_cast<size_t>(bytes));
      }
    }
  });
  return kAnyopOk;
}

extern "C" int32_t anyop_moe_permute_backward_cpu(const MoePermuteBackwardArgs* args,
                                                  AnyopCall* call) {
  const int64_t N = args->N, slots = args->T * args->top_k;
  const auto* order = static_cast<const int32_t*>(args->order->data);
  auto* inverse = static_cast<int32_t*>(call->workspace(call, (slots + 1) * 4));
  if (!inverse) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  std::fill_n(inverse, slots, -1);
  for (int64_t i = 0; i < N; ++i)
    if (order[i] >= 0 && order[i] < slots) inverse[order[i]] = static_cast<int32_t>(i);
  return anyop::SumTokens(call, args->grad_out, inverse, nullptr, N, args->T, args->top_k, args->H,
                          args->grad_x);
}
