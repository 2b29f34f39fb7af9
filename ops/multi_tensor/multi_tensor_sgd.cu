// SPDX-License-Identifier: Apache-2.0
// multi_tensor_sgd on CUDA: three reads and two writes an element, two and one without momentum.
#include "cuda_step.h"
#include "sgd_step.h"

extern "C" int32_t anyop_multi_tensor_sgd_cuda(const MultiTensorSgdArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return RunSteps(call, anyop::Sgd<Single>(*args), args->master, args->copy, args->p, args->g,
                  args->buffer);
}
