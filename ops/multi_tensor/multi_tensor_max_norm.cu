// SPDX-License-Identifier: Apache-2.0
// multi_tensor_max_norm on CUDA: one read an element.
#include "anyop/ops/multi_tensor_max_norm.h"
#include "cuda_norms.h"

extern "C" int32_t anyop_multi_tensor_max_norm_cuda(const MultiTensorMaxNormArgs* args,
                                                    AnyopCall* call) {
  using namespace anyop::cuda;
  return WriteNorms<true>(call, args->x, Single(args->scale), args->total, args->each);
}
