// SPDX-License-Identifier: Apache-2.0
// top_k_renorm on the CPU: see keep_rows.h.
#include "anyop/ops/top_k_renorm.h"

#include "keep_rows.h"

extern "C" int32_t anyop_top_k_renorm_cpu(const TopKRenormArgs* args, AnyopCall* call) {
  using namespace anyop::sampling;
  const Keeps keeps = {PerRowOf<int64_t>(args->top_k), {}, args->V, true};
  return anyop::sampling::RunKeep(call, args->probs, keeps, args->B, args->out);
}
