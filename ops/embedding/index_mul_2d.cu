// SPDX-License-Identifier: Apache-2.0
// Each row of in2 times the row of in1 that its index names, on CUDA (indexed_products_cuda.h).
// 3 D elements moved for each index.
#include "anyop/ops/index_mul_2d.h"
#include "indexed_products_cuda.h"

extern "C" int32_t anyop_index_mul_2d_cuda(const IndexMul2dArgs* args, AnyopCall* call) {
  return anyop::cuda::MultiplyByIndex(call, *args->indices, {args->in1, args->in2}, {}, *args->out,
                                      args->V);
}
