// SPDX-License-Identifier: Apache-2.0
// Gradient of index_mul_2d_backward: products (indexed_products.h) and a sum by index
// (indexed_sums.h); what an absent gradient would give is 0.
#include "anyop/ops/index_mul_2d_double_backward.h"

#include "indexed_products.h"
#include "indexed_sums.h"

extern "C" int32_t anyop_index_mul_2d_double_backward_cpu(const IndexMul2dDoubleBackwardArgs* args,
                                                          AnyopCall* call) {
  using namespace anyop::cpu;
  const int64_t N = args->N, V = args->V, D = args->D;
  if (int32_t status = anyop::CheckIndices(call, *args->indices, N, V)) return status;
  const AnyopTensor *of_in1 = args->grad_grad_in1, *of_in2 = args->grad_grad_in2;
  if (args->grad_grad_out) {
    const IndexedProduct second = {of_in2 ? args->in1 : nullptr, of_in2};
    const IndexedProducts both = {
        args->indices, {of_in1, args->in2}, second, args->grad_grad_out, N, D};
    if (int32_t status = MultiplyByIndex(call, both)) return status;
  }
  if (args->grad_in2) {
    const IndexedProducts product = {
        args->indices, {of_in1, args->grad_out}, {}, args->grad_in2, N, D};
    if (int32_t status = MultiplyByIndex(call, product)) return status;
  }
  if (!args->grad_in1) return kAnyopOk;
  if (of_in2)
    return SumByIndex(call, {of_in2, args->grad_out, args->indices, args->grad_in1, N, V, D});
  __builtin_memset(args->grad_in1->data, 0, V * D * (args->grad_in1->dtype_bits / 8));
  return kAnyopOk;
}
