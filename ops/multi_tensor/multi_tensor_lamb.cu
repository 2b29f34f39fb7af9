// SPDX-License-Identifier: Apache-2.0
// multi_tensor_lamb on CUDA: the norms of the parameters, stage one, the norms of the updates, and
// stage two; eight reads and four writes an element.
#include "anyop/ops/multi_tensor_lamb.h"
#include "cuda_norms.h"
#include "cuda_step.h"
#include "lamb_step.h"

extern "C" int32_t anyop_multi_tensor_lamb_cuda(const MultiTensorLambArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  auto* norms =
      static_cast<float*>(call->workspace(call, (2 * args->N + 1) * int64_t{sizeof(float)}));
  if (!norms) return kAnyopOutOfMemory;
  float* update_norms = norms + args->N;
  const anyop::LambStage1<Single> update(*args);
  const anyop::LambStage2<Single> change(*args, norms, update_norms);
  const AnyopTensorList& old = args->master.data ? args->master : args->p;
  const auto find = [&](const AnyopTensorList& x, float* to) {
    Parts parts;
    const int32_t status = StartChunks<false>(call, x, Single(), true, &parts);
    return status ? status : StartEach<false>(call, parts, WriteFloat{to});
  };
  if (int32_t status = find(old, norms)) return status;
  if (int32_t status = RunSteps(call, update, {}, {}, old, args->g, args->m, args->v, args->update))
    return status;
  if (int32_t status = find(args->update, update_norms)) return status;
  return RunSteps(call, change, args->master, args->copy, args->p, args->update);
}
