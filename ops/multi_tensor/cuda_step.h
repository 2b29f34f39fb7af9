// SPDX-License-Identifier: Apache-2.0
// Steps of optimizers on CUDA: a block for each chunk (ChunkOf), one thread of which makes what is
// the same for all of its elements.
#ifndef ANYOP_OPS_MULTI_TENSOR_CUDA_STEP_H_
#define ANYOP_OPS_MULTI_TENSOR_CUDA_STEP_H_

#include <utility>

#include "anyop/cuda/lists.h"
#include "step.h"

namespace anyop::cuda {

template <typename Step, typename W, int kLists, size_t... I>
__device__ void StepElement(const Step& s, W& p, Four<W> (&v)[kLists], int k,
                            std::index_sequence<I...>) {
  s(p, v[1].at[k], v[I + 2].at[k]...);
}

// Of a multiprocessor, at least: what more blocks have on its way at once, and no spills.
template <typename W, unsigned kKinds, int kLists, bool kHasMore>
constexpr int BlocksOfStep =
    sizeof(W) != 4 || kLists - 2 * kHasMore + (kHasMore && kKinds == kMixedLists) > 4 ? 1
    : kKinds == kMixedLists || kLists > 4 - (kKinds == 0)                             ? 2
                                                                                      : 4;

// Lists: p, g, states; where kHasMore, then master, which is read instead of p, and copy, which is
// written as p is, each if given.
template <typename W, unsigned kKinds, bool kHasMore, typename Op, int kLists, int kBytes>
__global__ void __launch_bounds__(kListThreads, BlocksOfStep<W, kKinds, kLists, kHasMore>)
    StepOfLists(const __grid_constant__ ListTable<kLists, kBytes> table, Op op) {
  if (op.Skips()) return WaitForWork();
  constexpr int kStates = kLists - 2 - 2 * kHasMore;
  constexpr unsigned kOwn = (1u << (kStates + 2)) - 1, kMaster = 1u << (kLists - 2);
  constexpr unsigned kReads = Op::kReads & kOwn, kWrites = Op::kWrites & kOwn;
  using Step = decltype(op.At(W(), 0));
  __shared__ Step shared;
  const auto share = [&](int64_t tensor) {
    if (threadIdx.x == 0) shared = op.At(W(), tensor);
    __syncthreads();
    return shared;
  };
  // Where the chunk is not asked for it is found later: it takes registers.
  Step s;
  if constexpr (!Op::kCountsTensors) s = share(0);
  const Chunk chunk = FindChunk<kKinds>(table);
  if constexpr (Op::kCountsTensors) s = share(table.first_tensor + chunk.tensor);
  const bool has_master = kHasMore && table.tensor[chunk.tensor].data[kLists - 2];
  const unsigned reads = has_master ? (kReads & ~1u) | kMaster : kReads;
  WalkChunk<W, kKinds>(table, chunk, reads, kHasMore ? kWrites | 3 * kMaster : kWrites,
                       [&](Four<W>(&v)[kLists]) {
#pragma unroll
                         for (int k = 0; k < 4; ++k) {
                           W p = has_master ? v[kLists - 2].at[k] : v[0].at[k];
                           StepElement(s, p, v, k, std::make_index_sequence<kStates>());
                           v[0].at[k] = p;
                           if constexpr (kHasMore) v[kLists - 2].at[k] = v[kLists - 1].at[k] = p;
                         }
                       });
}

// p, g and copy are of bfloat16 in most training of 16 bits, all else of float32.
template <bool kHasMore, typename Op, int kLists>
int32_t RunSteps(AnyopCall* call, const Op& op, const Lists<kLists>& lists) {
  constexpr unsigned kCopy = kHasMore ? 1u << (kLists - 1) : 0, kAll = kFloat32Lists<kLists>;
  constexpr unsigned kHalves = kAll & ~(3u | kCopy);
  const auto start = [&](auto zero, auto kinds, const auto& table, unsigned n) {
    return LaunchOver(table, n).Run(
        call,
        StepOfLists<decltype(zero), kinds.value, kHasMore, Op, kLists, BytesOf<decltype(table)>>,
        table, op);
  };
  if constexpr (kHasMore) {
    return StartLists<kHalves>(lists, Op::kCountsTensors, start);
  } else {
    return StartLists<kHalves, kAll, 0u>(lists, Op::kCountsTensors, start);
  }
}

// The kernel without masters and copies takes more tensors in a launch.
template <typename Op, typename... States>
int32_t RunSteps(AnyopCall* call, const Op& op, const AnyopTensorList& master,
                 const AnyopTensorList& copy, const AnyopTensorList& p, const AnyopTensorList& g,
                 const States&... states) {
  if (!master.data && !copy.data)
    return RunSteps<false>(call, op, Lists<2 + int{sizeof...(states)}>{{p, g, states...}});
  return RunSteps<true>(call, op,
                        Lists<4 + int{sizeof...(states)}>{{p, g, states..., master, copy}});
}

}  // namespace anyop::cuda

#endif  // ANYOP_OPS_MULTI_TENSOR_CUDA_STEP_H_
