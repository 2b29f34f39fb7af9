// SPDX-License-Identifier: Apache-2.0
// multi_tensor_novograd on the CPU: the norms of the gradients, then three reads and two writes an
// element.
#include "cpu_norms.h"
#include "cpu_step.h"
#include "novograd_step.h"

namespace anyop::cpu {
namespace {

ANYOP_CPU_CLONES void Run(const Novograd<Single>& novograd, const StepLists<1>& lists, bool is_wide,
                          const Span& span) {
  StepSpan(novograd, lists, is_wide, span);
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_multi_tensor_novograd_cpu(const MultiTensorNovogradArgs* args,
                                                   AnyopCall* call) {
  using namespace anyop::cpu;
  const anyop::Novograd<Single> novograd(*args);
  if (novograd.Skips()) return kAnyopOk;
  double total;
  if (int32_t status =
          FindNorms(call, args->g, novograd.inv_scale.Read(1), novograd.maximum, &total, novograd))
    return status;
  const StepLists<1> lists = {args->p, args->g, {args->m}, args->master, args->copy};
  return RunSteps(call, novograd, lists, Run);
}
