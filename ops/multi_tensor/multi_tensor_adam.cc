// SPDX-License-Identifier: Apache-2.0
// multi_tensor_adam on the CPU: four reads and three writes an element, one more of each with
// running averages.
#include "adam_step.h"
#include "cpu_step.h"

namespace anyop::cpu {
namespace {

ANYOP_CPU_CLONES void Run(const Adam<Single>& adam, const StepLists<2>& lists, bool is_wide,
                          const Span& span) {
  StepSpan(adam, lists, is_wide, span);
}

ANYOP_CPU_CLONES void RunAveraged(const AveragedAdam<Single>& adam, const StepLists<3>& lists,
                                  bool is_wide, const Span& span) {
  StepSpan(adam, lists, is_wide, span);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_multi_tensor_adam_cpu(const MultiTensorAdamArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  if (args->average.data) {
    const StepLists<3> lists = {
        args->p, args->g, {args->m, args->v, args->average}, args->master, args->copy};
    return RunSteps(call, anyop::AveragedAdam<Single>(*args), lists, RunAveraged);
  }
  const StepLists<2> lists = {args->p, args->g, {args->m, args->v}, args->master, args->copy};
  return RunSteps(call, anyop::Adam<Single>(*args), lists, Run);
}
