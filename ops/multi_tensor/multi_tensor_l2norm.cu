// SPDX-License-Identifier: Apache-2.0
// multi_tensor_l2norm on CUDA: one read an element.
//
// A block sums the squares of a chunk of 4,096 elements, in float32 (float64 where a tensor is of
// it), and writes the sum beside those of all chunks. One block adds these in float64 to `total`; a
// warp for each tensor adds its own to `each`. The order is the same in every run.
#include "anyop/cuda_lists.h"
#include "anyop/ops/multi_tensor_l2norm.h"

namespace anyop::cuda {
namespace {

constexpr int kTotalThreads = 1024;

// What is added by the threads of a block, for thread 0. shared: a place for each warp.
template <typename W>
__device__ W SumOfBlock(W v, W* shared) {
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
#pragma unroll
  for (int step = 16; step; step /= 2) v += __shfl_xor_sync(~0u, v, step);
  if (lane == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x < 32) {
    v = lane < warps ? shared[lane] : W(0);
#pragma unroll
    for (int step = 16; step; step /= 2) v += __shfl_xor_sync(~0u, v, step);
  }
  return v;
}

// starts: of each tensor its first chunk; NULL where not asked for.
template <typename W, bool kFloat32, int kBytes>
__global__ void __launch_bounds__(kListThreads)
    SumSquares(const __grid_constant__ ListTable<1, kBytes> table, Single scale, double* sums,
               int64_t* starts) {
  __shared__ W shared[kListThreads / 32];
  const Chunk chunk = FindChunk(table);
  const W factor = static_cast<W>(scale.Read(1));
  W sum[4] = {};
  WalkChunk<W, kFloat32>(table, chunk, 1, 0, [&](Four<W>(&v)[1]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const W scaled = v[0].at[k] * factor;
      sum[k] = MulAdd(scaled, scaled, sum[k]);
    }
  });
  const W total = SumOfBlock((sum[0] + sum[1]) + (sum[2] + sum[3]), shared);
  if (threadIdx.x) return;
  const int64_t at = table.first_chunk + blockIdx.x;
  sums[at] = static_cast<double>(total);
  if (starts && chunk.begin == 0) starts[table.first_tensor + chunk.tensor] = at;
}

__global__ void __launch_bounds__(kTotalThreads)
    AddSums(const double* sums, int64_t chunks, float* total) {
  __shared__ double shared[kTotalThreads / 32];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < chunks; i += blockDim.x) sum += sums[i];
  sum = SumOfBlock(sum, shared);
  if (threadIdx.x == 0) *total = static_cast<float>(sqrt(sum));
}

__global__ void __launch_bounds__(kListThreads)
    AddEach(const double* sums, const int64_t* starts, int64_t chunks, int64_t N, float* each) {
  const int64_t n = int64_t{blockIdx.x} * (kListThreads / 32) + threadIdx.x / 32;
  if (n >= N) return;
  const int64_t end = n + 1 < N ? starts[n + 1] : chunks;
  double sum = 0;
  for (int64_t i = starts[n] + threadIdx.x % 32; i < end; i += 32) sum += sums[i];
#pragma unroll
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (threadIdx.x % 32 == 0) each[n] = static_cast<float>(sqrt(sum));
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_multi_tensor_l2norm_cuda(const MultiTensorL2normArgs* args,
                                                  AnyopCall* call) {
  using namespace anyop::cuda;
  const Lists<1> lists = {{args->x}};
  const int64_t chunks = lists.CountChunks(), N = args->N;
  auto* sums = static_cast<double*>(call->workspace(call, (chunks + N + 1) * 8));
  if (!sums) return kAnyopOutOfMemory;
  auto* starts = args->each ? reinterpret_cast<int64_t*>(sums + chunks) : nullptr;
  const Single scale(args->scale);
  if (int32_t status =
          StartLists(lists, true, [&](auto zero, auto all_float32, const auto& table, unsigned n) {
            const Launch launch{dim3(n), dim3(kListThreads)};
            return launch.Run(
                call, SumSquares<decltype(zero), all_float32.value, BytesOf<decltype(table)>>,
                table, scale, sums, starts);
          }))
    return status;
  if (args->each && N) {
    const Launch launch{dim3(static_cast<unsigned>(CeilDiv(N, kListThreads / 32))),
                        dim3(kListThreads)};
    if (int32_t status = launch.Run(call, AddEach, static_cast<const double*>(sums),
                                    static_cast<const int64_t*>(starts), chunks, N,
                                    static_cast<float*>(args->each->data)))
      return status;
  }
  const Launch launch{dim3(1), dim3(kTotalThreads)};
  return launch.Run(call, AddSums, static_cast<const double*>(sums), chunks,
                    static_cast<float*>(args->total->data));
}
