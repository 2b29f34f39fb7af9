// SPDX-License-Identifier: Apache-2.0
// multi_tensor_adagrad on CUDA: three reads and two writes an element.
#include "adagrad_step.h"
#include "cuda_step.h"

extern "C" int32_t anyop_multi_tensor_adagrad_cuda(const MultiTensorAdagradArgs* args,
                                                   AnyopCall* call) {
  using namespace anyop::cuda;
  return RunSteps(call, anyop::Adagrad<Single>(*args), args->master, args->copy, args->p, args->g,
                  args->squares);
}
