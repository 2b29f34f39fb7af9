// SPDX-License-Identifier: Apache-2.0
// Gradient of embedding: each row of grad_weight is the sum of the rows of grad_out that have its
// index, in their order (indexed_sums.h).
#include "anyop/ops/embedding_backward.h"

#include "indexed_sums.h"

extern "C" int32_t anyop_embedding_backward_cpu(const EmbeddingBackwardArgs* args,
                                                AnyopCall* call) {
  if (int32_t status = anyop::CheckIndices(call, *args->indices, args->rows, args->V))
    return status;
  return anyop::cpu::SumByIndex(call, {args->grad_out, nullptr, args->indices, args->grad_weight,
                                       args->rows, args->V, args->D});
}
