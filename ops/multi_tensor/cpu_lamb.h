// SPDX-License-Identifier: Apache-2.0
// The two stages of LAMB on the CPU.
#ifndef ANYOP_OPS_MULTI_TENSOR_CPU_LAMB_H_
#define ANYOP_OPS_MULTI_TENSOR_CPU_LAMB_H_

#include "cpu_step.h"
#include "lamb_step.h"

namespace anyop::cpu {

ANYOP_CPU_CLONES void StepStage1(const LambStage1<Single>& stage, const StepLists<3>& lists,
                                 bool is_wide, const Span& span) {
  StepSpan(stage, lists, is_wide, span);
}
ANYOP_CPU_CLONES void StepStage2(const LambStage2<Single>& stage, const StepLists<0>& lists,
                                 bool is_wide, const Span& span) {
  StepSpan(stage, lists, is_wide, span);
}

inline int32_t RunStage1(AnyopCall* call, const LambStage1<Single>& stage,
                         const StepLists<3>& lists) {
  return RunSteps(call, stage, lists, StepStage1);
}
inline int32_t RunStage2(AnyopCall* call, const LambStage2<Single>& stage,
                         const StepLists<0>& lists) {
  return RunSteps(call, stage, lists, StepStage2);
}

}  // namespace anyop::cpu

#endif  // ANYOP_OPS_MULTI_TENSOR_CPU_LAMB_H_
