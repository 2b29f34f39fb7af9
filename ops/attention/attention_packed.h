// SPDX-License-Identifier: Apache-2.0
// Attention over packed sequences: each of them as a problem of its own.
#pragma once

#include "attention_problem.h"

namespace anyop {

// Tokens first to end of (tokens, heads, features) as (1, heads, tokens, features).
struct HeadsFirst {
  int64_t shape[4], strides[4];
  AnyopTensor tensor;

  HeadsFirst(const AnyopTensor& packed, int64_t first, int64_t end)
      : shape{1, packed.shape[1], end - first, packed.shape[2]},
        strides{0, packed.strides[1], packed.strides[0], packed.strides[2]},
        tensor(packed) {
    tensor.ndim = 4, tensor.shape = shape, tensor.strides = strides;
    if (tensor.data)
      tensor.data = static_cast<char*>(tensor.data) + first * strides[2] * (tensor.dtype_bits / 8);
  }
  HeadsFirst(const HeadsFirst&) = delete;
};

// Queries and keys of a sequence.
struct Sequence {
  int64_t q, q_end, k, k_end;
};

// The last query of a sequence lies at its last key.
struct SequenceProblem {
  HeadsFirst q, k, v, out;
  AnyopTensor lse;
  AttentionProblem problem;

  template <typename Args>
  SequenceProblem(const Args& args, const AnyopTensor* all_lse, const Sequence& at)
      : q(*args.q, at.q, at.q_end),
        k(*args.k, at.k, at.k_end),
        v(*args.v, at.k, at.k_end),
        out(*args.out, at.q, at.q_end),
        lse(all_lse ? *all_lse : AnyopTensor{}),
        problem{&q.tensor,
                &k.tensor,
                &v.tensor,
                nullptr,
                args.sinks,
                args.alibi_slopes,
                &out.tensor,
                all_lse ? &lse : nullptr,
                1,
                args.H,
                args.G,
                at.q_end - at.q,
                at.k_end - at.k,
                args.D,
                args.E,
                KeyWindow(at.k_end - at.k, args.causal, at.k_end - at.k - (at.q_end - at.q),
                          args.window_left, args.window_right),
                ScaleOf(args),
                args.softcap,
                0,
                1,
                args.H} {
    if (lse.data) lse.data = static_cast<float*>(lse.data) + at.q * args.H;
  }
};

}  // namespace anyop
