// SPDX-License-Identifier: Apache-2.0
// softmax on the CPU; see over_dim.h.
#include "anyop/ops/softmax.h"

#include "over_dim.h"

namespace anyop::cpu {
namespace {

ANYOP_CPU_CLONES void Run(const OverDim* work, int64_t begin, int64_t end) {
  SoftmaxUnits<false>(work, begin, end);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_softmax_cpu(const SoftmaxArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  const OverDim work(args->x, args->out, args->dim);
  return RunRows(call, &work, work.units, work.unit_elements, Run);
}
