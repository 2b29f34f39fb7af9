// SPDX-License-Identifier: Apache-2.0
// multi_tensor_average on the CPU: two reads and one write an element.
#include "average_step.h"
#include "cpu_step.h"

namespace anyop::cpu {
namespace {

ANYOP_CPU_CLONES void Run(const Average<Single>& average, const StepLists<0>& lists, bool is_wide,
                          const Span& span) {
  StepSpan(average, lists, is_wide, span);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_multi_tensor_average_cpu(const MultiTensorAverageArgs* args,
                                                  AnyopCall* call) {
  using namespace anyop::cpu;
  const StepLists<0> lists = {args->average, args->p, {}, {}, {}};
  return RunSteps(call, anyop::Average<Single>(*args), lists, Run);
}
