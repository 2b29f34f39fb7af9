// SPDX-License-Identifier: Apache-2.0
// sample_probs on the CPU: see sample_rows.h.
#include "anyop/ops/sample_probs.h"

#include "sample_rows.h"

extern "C" int32_t anyop_sample_probs_cpu(const SampleProbsArgs* args, AnyopCall* call) {
  using namespace anyop::sampling;
  return RunSample(call, args->probs, RequestsOf(*args, nullptr, true, args->top_k_first), args->B,
                   static_cast<int32_t*>(args->out->data), nullptr);
}
