// SPDX-License-Identifier: Apache-2.0
// multi_tensor_average on CUDA: two reads and one write an element.
#include "average_step.h"
#include "cuda_step.h"

extern "C" int32_t anyop_multi_tensor_average_cuda(const MultiTensorAverageArgs* args,
                                                   AnyopCall* call) {
  using namespace anyop::cuda;
  return RunSteps<false>(call, anyop::Average<Single>(*args), Lists<2>{{args->average, args->p}});
}
