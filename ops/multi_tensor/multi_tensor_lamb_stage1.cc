// SPDX-License-Identifier: Apache-2.0
// multi_tensor_lamb_stage1 on the CPU: four reads and three writes an element.
#include "anyop/ops/multi_tensor_lamb_stage1.h"

#include "cpu_lamb.h"

extern "C" int32_t anyop_multi_tensor_lamb_stage1_cpu(const MultiTensorLambStage1Args* args,
                                                      AnyopCall* call) {
  using namespace anyop::cpu;
  const anyop::LambStage1<Single> stage(*args);
  return RunStage1(call, stage, {args->p, args->g, {args->m, args->v, args->update}, {}, {}});
}
