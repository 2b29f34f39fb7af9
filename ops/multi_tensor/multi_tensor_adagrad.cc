// SPDX-License-Identifier: Apache-2.0
// multi_tensor_adagrad on the CPU: three reads and two writes an element.
#include "adagrad_step.h"
#include "cpu_step.h"

namespace anyop::cpu {
namespace {

ANYOP_CPU_CLONES void Run(const Adagrad<Single>& adagrad, const StepLists<1>& lists, bool is_wide,
                          const Span& span) {
  StepSpan(adagrad, lists, is_wide, span);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_multi_tensor_adagrad_cpu(const MultiTensorAdagradArgs* args,
                                                  AnyopCall* call) {
  using namespace anyop::cpu;
  const StepLists<1> lists = {args->p, args->g, {args->squares}, args->master, args->copy};
  return RunSteps(call, anyop::Adagrad<Single>(*args), lists, Run);
}
