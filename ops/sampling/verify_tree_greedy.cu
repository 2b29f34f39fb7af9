// SPDX-License-Identifier: Apache-2.0
// verify_tree_greedy on CUDA: a thread has a tree.
#include "anyop/cuda.h"
#include "anyop/ops/verify_tree_greedy.h"
#include "greedy_tree.h"

namespace anyop::cuda {
namespace {

template <typename Int>
__global__ void __launch_bounds__(32) Follow(const sampling::GreedyTrees<Int> trees) {
  const int64_t b = int64_t{blockIdx.x} * 32 + threadIdx.x;
  if (b < trees.B) trees.Follow(b);
}

template <typename Int>
int32_t Run(AnyopCall* call, const sampling::GreedyTrees<Int>& trees) {
  const Launch launch{dim3(static_cast<unsigned>(CeilDiv(trees.B, 32))), dim3(32)};
  return trees.B ? launch.Run(call, Follow<Int>, trees) : kAnyopOk;
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_verify_tree_greedy_cuda(const VerifyTreeGreedyArgs* args,
                                                 AnyopCall* call) {
  return anyop::sampling::WithTrees(
      *args, [&](const auto& trees) { return anyop::cuda::Run(call, trees); });
}
