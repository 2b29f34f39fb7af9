// SPDX-License-Identifier: Apache-2.0
// Gradient of index_mul_2d_backward on CUDA: products (indexed_products_cuda.h) and a sum by index
// (indexed_sums_cuda.h), the same bits each time; what an absent gradient would give is 0.
#include "anyop/ops/index_mul_2d_double_backward.h"
#include "indexed_products_cuda.h"
#include "indexed_sums_cuda.h"

extern "C" int32_t anyop_index_mul_2d_double_backward_cuda(const IndexMul2dDoubleBackwardArgs* args,
                                                           AnyopCall* call) {
  using namespace anyop::cuda;
  const AnyopTensor *of_in1 = args->grad_grad_in1, *of_in2 = args->grad_grad_in2;
  const AnyopTensor& indices = *args->indices;
  if (args->grad_grad_out) {
    const IndexedProduct second = {of_in2 ? args->in1 : nullptr, of_in2};
    if (int32_t status = MultiplyByIndex(call, indices, {of_in1, args->in2}, second,
                                         *args->grad_grad_out, args->V))
      return status;
  }
  if (args->grad_in2) {
    if (int32_t status =
            MultiplyByIndex(call, indices, {of_in1, args->grad_out}, {}, *args->grad_in2, args->V))
      return status;
  }
  if (!args->grad_in1) return kAnyopOk;
  // Without grad_grad_in2 no rows are added, which leaves zeros.
  const AnyopTensor* terms = of_in2 ? of_in2 : args->grad_out;
  return SumByIndex<true>(call, {terms, args->grad_out, args->indices, args->grad_in1,
                                 of_in2 ? args->N : 0, args->V, args->D});
}
