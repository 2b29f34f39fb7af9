// SPDX-License-Identifier: Apache-2.0
// verify_tree_greedy on the CPU: threads take trees.
#include "anyop/ops/verify_tree_greedy.h"

#include "greedy_tree.h"

extern "C" int32_t anyop_verify_tree_greedy_cpu(const VerifyTreeGreedyArgs* args, AnyopCall* call) {
  return anyop::sampling::WithTrees(*args, [&](const auto& trees) {
    anyop::ParallelFor(call, trees.B, 1024, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) trees.Follow(b);
    });
    return int32_t{kAnyopOk};
  });
}
