// SPDX-License-Identifier: Apache-2.0
// Gradient of relu on CUDA: two reads and one write an element; exact.
#include "anyop/cuda/map.h"
#include "anyop/ops/relu_backward.h"

namespace anyop::cuda {
namespace {

struct ReluGradient {
  template <typename W>
  __device__ W operator()(W g, W y) const {
    return y <= 0 ? W(0) : g;  // behind a NaN the gradient passes, as in PyTorch
  }
};

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_relu_backward_cuda(const ReluBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return RunFloatMap(call, ReluGradient(), {args->grad_out, args->out}, args->grad_x);
}
