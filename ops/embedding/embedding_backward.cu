// SPDX-License-Identifier: Apache-2.0
// Gradient of embedding on CUDA: each row of grad_weight is the sum of the rows of grad_out that
// have its index, in their order: the same bits each time (indexed_sums_cuda.h). An index outside
// counts for nothing.
#include "anyop/ops/embedding_backward.h"
#include "indexed_sums_cuda.h"

extern "C" int32_t anyop_embedding_backward_cuda(const EmbeddingBackwardArgs* args,
                                                 AnyopCall* call) {
  return anyop::cuda::SumByIndex<false>(call, {args->grad_out, nullptr, args->indices,
                                               args->grad_weight, args->rows, args->V, args->D});
}
