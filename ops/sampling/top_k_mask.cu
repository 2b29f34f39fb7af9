// SPDX-License-Identifier: Apache-2.0
// top_k_mask on CUDA: see keep_rows_cuda.h.
#include "anyop/ops/top_k_mask.h"
#include "keep_rows_cuda.h"

extern "C" int32_t anyop_top_k_mask_cuda(const TopKMaskArgs* args, AnyopCall* call) {
  using namespace anyop::sampling;
  const Keeps keeps = {PerRowOf<int64_t>(args->top_k), {}, args->V, false};
  return anyop::cuda::RunKeep(call, args->logits, keeps, args->B, args->out);
}
