// SPDX-License-Identifier: Apache-2.0
// Each row of in2 times the row of in1 that its index names (indexed_products.h); all indices are
// looked at before anything is written.
#include "anyop/ops/index_mul_2d.h"

#include "indexed_products.h"
#include "indices.h"

extern "C" int32_t anyop_index_mul_2d_cpu(const IndexMul2dArgs* args, AnyopCall* call) {
  if (int32_t status = anyop::CheckIndices(call, *args->indices, args->N, args->V)) return status;
  return anyop::cpu::MultiplyByIndex(
      call, {args->indices, {args->in1, args->in2}, {}, args->out, args->N, args->D});
}
