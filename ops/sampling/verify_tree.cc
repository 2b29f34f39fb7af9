// SPDX-License-Identifier: Apache-2.0
// verify_tree on the CPU: see verify_rows_cpu.h.
#include "anyop/ops/verify_tree.h"

#include "verify_rows_cpu.h"

extern "C" int32_t anyop_verify_tree_cpu(const VerifyTreeArgs* args, AnyopCall* call) {
  using namespace anyop::sampling;
  if (args->candidates->dtype_bits == 64)
    return RunVerify(call, TreesOf<int64_t>(*args), args->target_probs, args->draft_probs);
  return RunVerify(call, TreesOf<int32_t>(*args), args->target_probs, args->draft_probs);
}
