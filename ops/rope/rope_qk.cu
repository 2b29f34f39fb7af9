// SPDX-License-Identifier: Apache-2.0
// rope of queries and keys on CUDA, in one launch: see rotary_rows.h.
#include "anyop/ops/rope_qk.h"
#include "rotary_rows.h"

extern "C" int32_t anyop_rope_qk_cuda(const RopeQkArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return RunQueryKey(call, args, [&](const AnyopTensor* const(&tensors)[4]) {
    return RunRotation<false>(call, args, tensors);
  });
}
