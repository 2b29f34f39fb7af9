// SPDX-License-Identifier: Apache-2.0
// multi_tensor_adam on CUDA: four reads and three writes an element, one more of each with running
// averages and where there is a master, and a write for a copy.
#include "adam_step.h"
#include "cuda_step.h"

extern "C" int32_t anyop_multi_tensor_adam_cuda(const MultiTensorAdamArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  if (args->average.data)
    return RunSteps(call, anyop::AveragedAdam<Single>(*args), args->master, args->copy, args->p,
                    args->g, args->m, args->v, args->average);
  return RunSteps(call, anyop::Adam<Single>(*args), args->master, args->copy, args->p, args->g,
                  args->m, args->v);
}
