// SPDX-License-Identifier: Apache-2.0
// Gradient of index_mul_2d on CUDA: a sum by index (indexed_sums_cuda.h), the same bits each time,
// and a product (indexed_products_cuda.h).
#include "anyop/ops/index_mul_2d_backward.h"
#include "indexed_products_cuda.h"
#include "indexed_sums_cuda.h"

extern "C" int32_t anyop_index_mul_2d_backward_cuda(const IndexMul2dBackwardArgs* args,
                                                    AnyopCall* call) {
  using namespace anyop::cuda;
  if (args->grad_in2) {
    if (int32_t status = MultiplyByIndex(call, *args->indices, {args->in1, args->grad_out}, {},
                                         *args->grad_in2, args->V))
      return status;
  }
  if (!args->grad_in1) return kAnyopOk;
  return SumByIndex<true>(
      call, {args->grad_out, args->in2, args->indices, args->grad_in1, args->N, args->V, args->D});
}
