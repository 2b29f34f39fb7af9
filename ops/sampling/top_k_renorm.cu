// SPDX-License-Identifier: Apache-2.0
// top_k_renorm on CUDA: see keep_rows_cuda.h.
#include "anyop/ops/top_k_renorm.h"
#include "keep_rows_cuda.h"

extern "C" int32_t anyop_top_k_renorm_cuda(const TopKRenormArgs* args, AnyopCall* call) {
  using namespace anyop::sampling;
  const Keeps keeps = {PerRowOf<int64_t>(args->top_k), {}, args->V, true};
  return anyop::cuda::RunKeep(call, args->probs, keeps, args->B, args->out);
}
