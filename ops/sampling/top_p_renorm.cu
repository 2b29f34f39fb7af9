// SPDX-License-Identifier: Apache-2.0
// top_p_renorm on CUDA: see keep_rows_cuda.h.
#include "anyop/ops/top_p_renorm.h"
#include "keep_rows_cuda.h"

extern "C" int32_t anyop_top_p_renorm_cuda(const TopPRenormArgs* args, AnyopCall* call) {
  using namespace anyop::sampling;
  const Keeps keeps = {{}, PerRowOf<float>(args->top_p), args->V, true};
  return anyop::cuda::RunKeep(call, args->probs, keeps, args->B, args->out);
}
