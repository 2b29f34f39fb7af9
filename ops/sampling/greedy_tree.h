// SPDX-License-Identifier: Apache-2.0
// One tree of verify_tree_greedy, on the CPU and on CUDA.
#ifndef ANYOP_OPS_SAMPLING_GREEDY_TREE_H_
#define ANYOP_OPS_SAMPLING_GREEDY_TREE_H_

#include "draw.h"

namespace anyop::sampling {

template <typename Int>
struct GreedyTrees {
  const Int *candidates, *next_token, *next_sibling, *target;
  int32_t *tokens, *index, *accepted;
  int64_t B, D;

  // Nodes are not trusted: a list may run in circles.
  ANYOP_DRAW_FUNCTION void Follow(int64_t b) const {
    const int64_t row = b * D;
    int64_t node = 0, taken = 0, looks = 0;
    for (int64_t d = 0; d < D; ++d) tokens[row + d] = index[row + d] = -1;
    for (; taken < D; ++taken) {
      index[row + taken] = static_cast<int32_t>(node);
      tokens[row + taken] = static_cast<int32_t>(target[row + node]);
      if (taken + 1 == D) break;
      int64_t child = next_token[row + node];
      while (child >= 0 && child < D && looks < D &&
             candidates[row + child] != target[row + node]) {
        child = next_sibling[row + child];
        ++looks;
      }
      if (child < 0 || child >= D || looks == D) break;
      node = child;
    }
    accepted[b] = static_cast<int32_t>(taken);
  }
};

// Calls run with the trees of a call.
template <typename Args, typename Run>
int32_t WithTrees(const Args& args, const Run& run) {
  const auto trees = [&](auto zero) {
    using Int = decltype(zero);
    const auto of = [](const auto* t) { return static_cast<const Int*>(t->data); };
    const auto to = [](const auto* t) { return static_cast<int32_t*>(t->data); };
    return GreedyTrees<Int>{of(args.candidates),
                            of(args.next_token),
                            of(args.next_sibling),
                            of(args.target),
                            to(args.tokens),
                            to(args.index),
                            to(args.accepted),
                            args.B,
                            args.D};
  };
  return args.target->dtype_bits == 64 ? run(trees(int64_t{0})) : run(trees(int32_t{0}));
}

}  // namespace anyop::sampling

#endif  // ANYOP_OPS_SAMPLING_GREEDY_TREE_H_
