// SPDX-License-Identifier: Apache-2.0
// sample on the CPU: see sample_rows.h.
#include "anyop/ops/sample.h"

#include "sample_rows.h"

extern "C" int32_t anyop_sample_cpu(const SampleArgs* args, AnyopCall* call) {
  using namespace anyop::sampling;
  return RunSample(call, args->logits,
                   RequestsOf(*args, args->temperature, false, args->top_k_first), args->B,
                   static_cast<int32_t*>(args->tokens->data),
                   args->logprob ? static_cast<float*>(args->logprob->data) : nullptr);
}
