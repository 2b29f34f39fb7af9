// SPDX-License-Identifier: Apache-2.0
// sample_probs on CUDA: see sample_rows_cuda.h.
#include "anyop/ops/sample_probs.h"
#include "sample_rows_cuda.h"

extern "C" int32_t anyop_sample_probs_cuda(const SampleProbsArgs* args, AnyopCall* call) {
  using anyop::sampling::RequestsOf;
  return anyop::cuda::RunDraws(call, args->probs,
                               RequestsOf(*args, nullptr, true, args->top_k_first), args->B,
                               static_cast<int32_t*>(args->out->data), nullptr);
}
