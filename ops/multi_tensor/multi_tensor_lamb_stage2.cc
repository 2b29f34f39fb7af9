// SPDX-License-Identifier: Apache-2.0
// multi_tensor_lamb_stage2 on the CPU: two reads and one write an element.
#include "anyop/ops/multi_tensor_lamb_stage2.h"

#include "cpu_lamb.h"

extern "C" int32_t anyop_multi_tensor_lamb_stage2_cpu(const MultiTensorLambStage2Args* args,
                                                      AnyopCall* call) {
  using namespace anyop::cpu;
  const anyop::LambStage2<Single> stage(*args, static_cast<const float*>(args->norms->data),
                                        static_cast<const float*>(args->update_norms->data));
  return RunStage2(call, stage, {args->p, args->update, {}, args->master, args->copy});
}
