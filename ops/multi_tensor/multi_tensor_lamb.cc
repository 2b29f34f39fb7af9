// SPDX-License-Identifier: Apache-2.0
// multi_tensor_lamb on the CPU: stage one, which adds up the norms of parameters and updates, and
// stage two; six reads and four writes an element.
#include "anyop/ops/multi_tensor_lamb.h"

#include "cpu_lamb.h"

extern "C" int32_t anyop_multi_tensor_lamb_cpu(const MultiTensorLambArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  auto* norms =
      static_cast<float*>(call->workspace(call, (2 * args->N + 1) * int64_t{sizeof(float)}));
  if (!norms) return kAnyopOutOfMemory;
  float* update_norms = norms + args->N;
  const anyop::LambStage1<Single> update(*args);
  const anyop::LambStage2<Single> change(*args, norms, update_norms);
  if (update.Skips()) return kAnyopOk;
  const AnyopTensorList& old = args->master.data ? args->master : args->p;
  const StepLists<3> lists = {old, args->g, {args->m, args->v, args->update}, {}, {}};
  const int32_t status = change.adapts ? RunStage1AndNorms(call, update, lists, norms, update_norms)
                                       : RunStage1(call, update, lists);
  if (status) return status;
  return RunStage2(call, change, {args->p, args->update, {}, args->master, args->copy});
}
