// SPDX-License-Identifier: Apache-2.0
// multi_tensor_l2norm on CUDA: one read an element.
#include "anyop/ops/multi_tensor_l2norm.h"
#include "cuda_norms.h"

extern "C" int32_t anyop_multi_tensor_l2norm_cuda(const MultiTensorL2normArgs* args,
                                                  AnyopCall* call) {
  using namespace anyop::cuda;
  return WriteNorms<false>(call, args->x, Single(args->scale), args->total, args->each);
}
