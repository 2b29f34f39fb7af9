// SPDX-License-Identifier: Apache-2.0
// multi_tensor_lamb_stage1 on CUDA: four reads and three writes an element.
#include "anyop/ops/multi_tensor_lamb_stage1.h"
#include "cuda_step.h"
#include "lamb_step.h"

extern "C" int32_t anyop_multi_tensor_lamb_stage1_cuda(const MultiTensorLambStage1Args* args,
                                                       AnyopCall* call) {
  using namespace anyop::cuda;
  const anyop::LambStage1<Single> stage(*args);
  return RunSteps(call, stage, {}, {}, args->p, args->g, args->m, args->v, args->update);
}
