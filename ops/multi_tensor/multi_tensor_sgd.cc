// SPDX-License-Identifier: Apache-2.0
// multi_tensor_sgd on the CPU: three reads and two writes an element.
#include "cpu_step.h"
#include "sgd_step.h"

namespace anyop {

template <typename W, typename Use>
inline void WithKnownFlags(SgdStep<W> s, Use use) {
  const auto with_begins = [&](bool begins) {
    s.begins = begins;
    if (s.nesterov) return s.nesterov = true, use(s);
    return s.nesterov = false, use(s);
  };
  return s.begins ? with_begins(true) : with_begins(false);
}

namespace cpu {
namespace {

ANYOP_CPU_CLONES void Run(const Sgd<Single>& sgd, const StepLists<1>& lists, bool is_wide,
                          const Span& span) {
  StepSpan(sgd, lists, is_wide, span);
}

}  // namespace
}  // namespace cpu
}  // namespace anyop

extern "C" int32_t anyop_multi_tensor_sgd_cpu(const MultiTensorSgdArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  const StepLists<1> lists = {args->p, args->g, {args->buffer}, args->master, args->copy};
  return RunSteps(call, anyop::Sgd<Single>(*args), lists, Run);
}
