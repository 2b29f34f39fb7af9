// SPDX-License-Identifier: Apache-2.0
// multi_tensor_lamb on CUDA: stage one, which adds up the squares of parameters and updates, their
// norms, and stage two; six reads and four writes an element.
#include "anyop/ops/multi_tensor_lamb.h"
#include "cuda_norms.h"
#include "cuda_step.h"
#include "lamb_step.h"

namespace anyop::cuda {
namespace {

// A block for each chunk of the lists p, g, m, v, update: the sums of a chunk are
// in float32 (float64 where a tensor is of it), those of a tensor in float64.
template <typename W, unsigned kKinds, int kBytes>
__global__ void __launch_bounds__(kListThreads)
    StepAndSum(const __grid_constant__ ListTable<5, kBytes> table, LambStage1<Single> stage,
               Parts parts) {
  const Chunk chunk = FindChunk<kKinds>(table);
  if (stage.Skips()) {
    if (threadIdx.x == 0) parts.Write(table, chunk, 0, 0);
    return WaitForWork();
  }
  __shared__ LambUpdate<W> shared;
  __shared__ W warps[2][kListThreads / 32];
  if (threadIdx.x == 0) shared = stage.At(W(), 0).update_of;
  __syncthreads();
  const LambUpdate<W> update_of = shared;
  W p = 0, update = 0;
  const auto body = [&](Four<W>(&v)[5], int n) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      v[4].at[k] = update_of(v[0].at[k], v[1].at[k], v[2].at[k], v[3].at[k]);
      if (k >= n) continue;  // without eps, what lies behind a tensor would be NaN
      p = MulAdd(v[0].at[k], v[0].at[k], p);
      update = MulAdd(v[4].at[k], v[4].at[k], update);
    }
  };
  WalkChunk<W, kKinds>(table, chunk, stage.kReads, stage.kWrites, body);
  p = JoinBlock<false>(p, warps[0]), update = JoinBlock<false>(update, warps[1]);
  if (threadIdx.x == 0) parts.Write(table, chunk, p, update);
}

// norms: of the parameters, then of the updates.
int32_t RunStage1AndNorms(AnyopCall* call, const LambStage1<Single>& stage, const Lists<5>& lists,
                          float* norms) {
  Parts parts;
  if (!parts.Make(call, lists, true, 2)) return kAnyopOutOfMemory;
  constexpr unsigned kHalves = 0b11100;
  const auto start = [&](auto zero, auto kinds, const auto& table, unsigned n) {
    return LaunchOver(table, n).Run(
        call, StepAndSum<decltype(zero), kinds.value, BytesOf<decltype(table)>>, table, stage,
        parts);
  };
  if (int32_t status = StartLists<kHalves, kFloat32Lists<5>, 0u>(lists, true, start)) return status;
  return StartEach<false>(call, parts, WriteFloat{norms}, 2);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_multi_tensor_lamb_cuda(const MultiTensorLambArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  auto* norms =
      static_cast<float*>(call->workspace(call, (2 * args->N + 1) * int64_t{sizeof(float)}));
  if (!norms) return kAnyopOutOfMemory;
  const anyop::LambStage1<Single> update(*args);
  const anyop::LambStage2<Single> change(*args, norms, norms + args->N);
  const AnyopTensorList& old = args->master.data ? args->master : args->p;
  const int32_t status =
      change.adapts
          ? RunStage1AndNorms(call, update, {{old, args->g, args->m, args->v, args->update}}, norms)
          : RunSteps(call, update, {}, {}, old, args->g, args->m, args->v, args->update);
  if (status) return status;
  return RunSteps(call, change, args->master, args->copy, args->p, args->update);
}
