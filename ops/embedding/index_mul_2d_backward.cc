// SPDX-License-Identifier: Apache-2.0
// Gradient of index_mul_2d: a sum by index (indexed_sums.h) and a product (indexed_products.h).
#include "anyop/ops/index_mul_2d_backward.h"

#include "indexed_products.h"
#include "indexed_sums.h"

extern "C" int32_t anyop_index_mul_2d_backward_cpu(const IndexMul2dBackwardArgs* args,
                                                   AnyopCall* call) {
  using namespace anyop::cpu;
  const int64_t N = args->N, V = args->V, D = args->D;
  if (int32_t status = anyop::CheckIndices(call, *args->indices, N, V)) return status;
  if (args->grad_in2) {
    const IndexedProducts product = {
        args->indices, {args->in1, args->grad_out}, {}, args->grad_in2, N, D};
    if (int32_t status = MultiplyByIndex(call, product)) return status;
  }
  if (!args->grad_in1) return kAnyopOk;
  return SumByIndex(call, {args->grad_out, args->in2, args->indices, args->grad_in1, N, V, D});
}
