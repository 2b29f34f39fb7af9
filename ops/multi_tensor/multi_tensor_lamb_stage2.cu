// SPDX-License-Identifier: Apache-2.0
// multi_tensor_lamb_stage2 on CUDA: two reads and one write an element.
#include "anyop/ops/multi_tensor_lamb_stage2.h"
#include "cuda_step.h"
#include "lamb_step.h"

extern "C" int32_t anyop_multi_tensor_lamb_stage2_cuda(const MultiTensorLambStage2Args* args,
                                                       AnyopCall* call) {
  using namespace anyop::cuda;
  const anyop::LambStage2<Single> stage(*args, static_cast<const float*>(args->norms->data),
                                        static_cast<const float*>(args->update_norms->data));
  return RunSteps(call, stage, args->master, args->copy, args->p, args->update);
}
