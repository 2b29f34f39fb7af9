// SPDX-License-Identifier: Apache-2.0
// verify_chain on CUDA: see verify_rows_cuda.h.
#include "anyop/ops/verify_chain.h"
#include "verify_rows_cuda.h"

extern "C" int32_t anyop_verify_chain_cuda(const VerifyChainArgs* args, AnyopCall* call) {
  using anyop::cuda::RunVerify;
  using anyop::sampling::ChainsOf;
  if (args->draft_tokens->dtype_bits == 64)
    return RunVerify(call, ChainsOf<int64_t>(*args), args->target_probs, args->draft_probs);
  return RunVerify(call, ChainsOf<int32_t>(*args), args->target_probs, args->draft_probs);
}
