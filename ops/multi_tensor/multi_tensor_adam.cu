// SPDX-License-Identifier: Apache-2.0
// multi_tensor_adam on CUDA: a block for each chunk of 4,096 elements; four reads and three writes
// an element, one more where there is a master, and one for a copy.
//
// What changes from step to step is read from the device: one thread makes the factors of a block.
// Elements are computed in float32, in float64 where a tensor of a list is of it.
#include "adam_step.h"
#include "anyop/cuda_lists.h"

namespace anyop::cuda {
namespace {

struct Given {
  Single lr, step, inv_scale, found_inf;
};

// The root of v, off by up to a unit in the last place; that of a number below 2^-126 is right too.
__device__ inline float Root(float v) {
#if ANYOP_PTX
  float root;
  asm("sqrt.approx.f32 %0, %1;" : "=f"(root) : "f"(v));
  return root;
#else
  return sqrtf(v);
#endif
}
__device__ inline double Root(double v) { return sqrt(v); }

// Lists: p, g, m, v; where kHasMore, then master and copy, each if given.
template <typename W, unsigned kKinds, bool kHasMore, int kLists, int kBytes>
__global__ void __launch_bounds__(
    kListThreads, sizeof(W) == 4 && !kHasMore && kKinds && kKinds != kMixedLists ? 4 : 1)
    AdamOfLists(const __grid_constant__ ListTable<kLists, kBytes> table, AdamRates rates,
                Given given) {
  if (given.found_inf.IsSet()) return;
  __shared__ AdamStep<W> shared;
  if (threadIdx.x == 0)
    shared = AdamStep<W>(rates, given.lr.Read(0), given.step.Read(1), given.inv_scale.Read(1));
  __syncthreads();
  const AdamStep<W> s = shared;
  const Chunk chunk = FindChunk(table);
  const bool has_master = kHasMore && table.data[kLists - 2][chunk.tensor];
  const unsigned reads = has_master ? 30 : 15, writes = kHasMore ? 61 : 13;
  WalkChunk<W, kKinds>(table, chunk, reads, writes, [&](Four<W>(&v)[kLists]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const W p = has_master ? v[kLists - 2].at[k] : v[0].at[k];
      const W h = MulAdd(v[1].at[k], s.scale, s.l2 * p);
      const W mean = MulAdd(s.beta1, v[2].at[k], s.rest1 * h);
      const W square = MulAdd(s.beta2, v[3].at[k], s.rest2 * (h * h));
      const W root = MulAdd(Root(square), s.root_factor, s.eps);
      const W change = MulAdd(s.decay, p, mean * s.mean_factor * Reciprocal(root));
      v[0].at[k] = MulAdd(-s.lr, change, p);
      v[2].at[k] = mean;
      v[3].at[k] = square;
      if constexpr (kHasMore) v[4].at[k] = v[5].at[k] = v[0].at[k];
    }
  });
}

// p, g and copy are of bfloat16 in most training of 16 bits, all else of float32.
template <bool kHasMore, int kLists>
int32_t Run(AnyopCall* call, const Lists<kLists>& lists, const AdamRates& rates,
            const Given& given) {
  constexpr unsigned kHalves = kHasMore ? 0b011100 : 0b1100;
  return StartLists<kHalves>(
      lists, false, [&](auto zero, auto kinds, const auto& table, unsigned n) {
        constexpr unsigned kKinds = kHasMore && kinds.value != kHalves ? kMixedLists : kinds.value;
        const Launch launch{dim3(n), dim3(kListThreads)};
        return launch.Run(
            call, AdamOfLists<decltype(zero), kKinds, kHasMore, kLists, BytesOf<decltype(table)>>,
            table, rates, given);
      });
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_multi_tensor_adam_cuda(const MultiTensorAdamArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  const anyop::AdamRates rates(*args);
  const Given given = {Single(args->lr), Single(args->step), Single(args->inv_scale),
                       Single(args->found_inf)};
  if (args->master.data || args->copy.data) {
    const Lists<6> lists = {{args->p, args->g, args->m, args->v, args->master, args->copy}};
    return Run<true>(call, lists, rates, given);
  }
  return Run<false>(call, Lists<4>{{args->p, args->g, args->m, args->v}}, rates, given);
}
