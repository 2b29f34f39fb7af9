// SPDX-License-Identifier: Apache-2.0
// Gradient of log_softmax on the CPU; see over_dim_backward.h.
#include "anyop/ops/log_softmax_backward.h"

#include "over_dim_backward.h"

namespace anyop::cpu {
namespace {

ANYOP_CPU_CLONES void Run(const OverDimBackward* work, int64_t begin, int64_t end) {
  SoftmaxGradientUnits<true>(work, begin, end);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_log_softmax_backward_cpu(const LogSoftmaxBackwardArgs* args,
                                                  AnyopCall* call) {
  using namespace anyop::cpu;
  const OverDimBackward work(args->grad_out, args->out, args->grad_x, args->dim);
  return RunRows(call, &work, work.units, work.unit_elements, Run);
}
