// SPDX-License-Identifier: Apache-2.0
// sample on CUDA: see sample_rows_cuda.h.
#include "anyop/ops/sample.h"
#include "sample_rows_cuda.h"

extern "C" int32_t anyop_sample_cuda(const SampleArgs* args, AnyopCall* call) {
  using anyop::sampling::RequestsOf;
  return anyop::cuda::RunDraws(call, args->logits,
                               RequestsOf(*args, args->temperature, false, args->top_k_first),
                               args->B, static_cast<int32_t*>(args->tokens->data),
                               args->logprob ? static_cast<float*>(args->logprob->data) : nullptr);
}
