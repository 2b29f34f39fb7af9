// SPDX-License-Identifier: Apache-2.0
// multi_tensor_lamb on the CPU: the norms of the parameters, stage one, the norms of the updates,
// and stage two.
#include "anyop/ops/multi_tensor_lamb.h"

#include "cpu_lamb.h"
#include "cpu_norms.h"

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
  const auto find = [&](const AnyopTensorList& x, float* to) {
    double total;
    return FindNorms(call, x, 1, false, &total,
                     [to](int64_t n, double norm) { to[n] = static_cast<float>(norm); });
  };
  if (int32_t status = find(old, norms)) return status;
  if (int32_t status =
          RunStage1(call, update, {old, args->g, {args->m, args->v, args->update}, {}, {}}))
    return status;
  if (int32_t status = find(args->update, update_norms)) return status;
  return RunStage2(call, change, {args->p, args->update, {}, args->master, args->copy});
}
