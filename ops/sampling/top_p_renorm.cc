// SPDX-License-Identifier: Apache-2.0
// top_p_renorm on the CPU: see keep_rows.h.
#include "anyop/ops/top_p_renorm.h"

#include "keep_rows.h"

extern "C" int32_t anyop_top_p_renorm_cpu(const TopPRenormArgs* args, AnyopCall* call) {
  using namespace anyop::sampling;
  const Keeps keeps = {{}, PerRowOf<float>(args->top_p), args->V, true};
  return anyop::sampling::RunKeep(call, args->probs, keeps, args->B, args->out);
}
