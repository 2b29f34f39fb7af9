// SPDX-License-Identifier: Apache-2.0
// relu on CUDA: one read and one write an element; exact.
#include "anyop/cuda/map.h"
#include "anyop/ops/relu.h"

namespace anyop::cuda {
namespace {

struct Relu {
  template <typename W>
  __device__ W operator()(W x) const {
    return x < 0 ? W(0) : x;  // NaN stays
  }
};

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_relu_cuda(const ReluArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return RunFloatMap(call, Relu(), {args->x}, args->out);
}
