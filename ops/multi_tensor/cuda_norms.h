// SPDX-License-Identifier: Apache-2.0
// Norms of lists of tensors on CUDA, Euclidean or the maximum of what is absolute.
//
// A block adds the squares of a chunk of elements, in float32 (float64 where a tensor is of it),
// and writes the sum beside those of all chunks. One block adds these in float64 to the norm of
// all, a block for each tensor those of its own. The order is the same in every run. Of maxima
// likewise; NaN is above everything.
#ifndef ANYOP_OPS_MULTI_TENSOR_CUDA_NORMS_H_
#define ANYOP_OPS_MULTI_TENSOR_CUDA_NORMS_H_

#include "anyop/cuda/lists.h"

namespace anyop::cuda {

template <bool kMaximum, typename W>
__device__ W Join(W a, W b) {
  return kMaximum ? b > a || b != b ? b : a : a + b;
}

// Of what lies in the lanes of a warp, for each.
template <bool kMaximum, typename W>
__device__ W JoinWarp(W v) {
#pragma unroll
  for (int step = 16; step; step /= 2) v = Join<kMaximum>(v, __shfl_xor_sync(~0u, v, step));
  return v;
}

// Of the threads of a block, for the first warp. shared: a place for each warp.
template <bool kMaximum, typename W>
__device__ W JoinBlock(W v, W* shared) {
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  v = JoinWarp<kMaximum>(v);
  if (lane == 0) shared[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x < 32) v = JoinWarp<kMaximum>(lane < warps ? shared[lane] : W(0));
  return v;
}

// Sums of chunks, one behind the other; where a chunk has several, set by set. starts: of each
// tensor its first chunk; NULL where not asked for.
struct Parts {
  double* sums = nullptr;
  int64_t *starts = nullptr, chunks = 0, N = 0;

  template <int kLists>
  bool Make(AnyopCall* call, const Lists<kLists>& lists, bool each, int sets = 1) {
    chunks = lists.CountChunks(), N = lists.count();
    sums = static_cast<double*>(call->workspace(call, (sets * chunks + (each ? N : 0) + 1) * 8));
    if (sums && each) starts = reinterpret_cast<int64_t*>(sums + sets * chunks);
    return sums;
  }
  // By one thread of a block: one of each set.
  template <typename Table, typename... Sums>
  __device__ void Write(const Table& table, const Chunk& chunk, Sums... of_sets) const {
    int64_t at = table.first_chunk + blockIdx.x;
    if (starts && chunk.begin == 0) starts[table.first_tensor + chunk.tensor] = at;
    ((sums[at] = static_cast<double>(of_sets), at += chunks), ...);
  }
};

// Of float32 alone all of a chunk is on its way at once.
template <unsigned kKinds>
constexpr int ThreadsOfNorm = kKinds == kFloat32Lists<1> ? 512 : kListThreads;
// At least so many blocks are to be on a multiprocessor.
template <typename W, unsigned kKinds>
constexpr int BlocksOfNorm = kKinds == 0                  ? 6
                             : kKinds == kFloat32Lists<1> ? 3
                             : sizeof(W) == 4             ? 4
                                                          : 2;

template <bool kMaximum, typename W, unsigned kKinds, int kBytes>
__global__ void __launch_bounds__(ThreadsOfNorm<kKinds>, BlocksOfNorm<W, kKinds>)
    JoinChunks(const __grid_constant__ ListTable<1, kBytes> table, Single scale, Parts parts) {
  LetNextStart();  // another one, or what joins the sums
  __shared__ W shared[ThreadsOfNorm<kKinds> / 32];
  const Chunk chunk = FindChunk<kKinds>(table);
  const W factor = static_cast<W>(scale.Read(1));
  W sum[4] = {};
  WalkChunk<W, kKinds, ThreadsOfNorm<kKinds>>(table, chunk, 1, 0, [&](Four<W>(&v)[1]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const W scaled = v[0].at[k] * factor;
      if constexpr (kMaximum) {
        sum[k] = Join<true>(sum[k], scaled < 0 ? -scaled : scaled);
      } else {
        sum[k] = MulAdd(scaled, scaled, sum[k]);
      }
    }
  });
  const W two = Join<kMaximum>(sum[0], sum[1]), others = Join<kMaximum>(sum[2], sum[3]);
  const W total = JoinBlock<kMaximum>(Join<kMaximum>(two, others), shared);
  if (threadIdx.x == 0) parts.Write(table, chunk, total);
}

constexpr int kTotalThreads = 1024;

// Of sums from begin to end, for the first warp: a thread has several on their way at once.
template <bool kMaximum>
__device__ double JoinSums(const double* sums, int64_t begin, int64_t end) {
  constexpr int kAhead = 8;
  __shared__ double shared[kTotalThreads / 32];
  double sum = 0;
  for (int64_t first = begin + threadIdx.x; first < end; first += kAhead * blockDim.x) {
    double ahead[kAhead];
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int64_t at = first + u * blockDim.x;
      ahead[u] = at < end ? sums[at] : 0;
    }
#pragma unroll
    for (int u = 0; u < kAhead; ++u) sum = Join<kMaximum>(sum, ahead[u]);
  }
  return JoinBlock<kMaximum>(sum, shared);
}

// write(norm): by one thread.
template <bool kMaximum, typename Write>
__global__ void __launch_bounds__(kTotalThreads) JoinAll(Parts parts, Write write) {
  WaitForWork();
  LetNextStart();
  const double sum = JoinSums<kMaximum>(parts.sums, 0, parts.chunks);
  if (threadIdx.x == 0) write(kMaximum ? sum : sqrt(sum));
}

// write(n, norm): of tensor n of the first set, n - N of the next, by one thread of its block.
template <bool kMaximum, typename Write>
__global__ void __launch_bounds__(kTotalThreads) JoinEach(Parts parts, Write write) {
  WaitForWork();
  LetNextStart();
  const int64_t set = blockIdx.x / parts.N, n = blockIdx.x % parts.N,
                end = n + 1 < parts.N ? parts.starts[n + 1] : parts.chunks;
  const double sum = JoinSums<kMaximum>(parts.sums + set * parts.chunks, parts.starts[n], end);
  if (threadIdx.x == 0) write(int64_t{blockIdx.x}, kMaximum ? sum : sqrt(sum));
}

// ---- host ----

// x: of each element times scale.
template <bool kMaximum>
int32_t StartChunks(AnyopCall* call, const AnyopTensorList& x, const Single& scale, bool each,
                    Parts* parts) {
  const Lists<1> lists = {{x}};
  if (!parts->Make(call, lists, each)) return kAnyopOutOfMemory;
  const auto start = [&](auto zero, auto kinds, const auto& table, unsigned n) {
    Launch launch = LaunchOver(table, n);
    launch.block = dim3(ThreadsOfNorm<kinds.value>);
    return launch.Run(call,
                      JoinChunks<kMaximum, decltype(zero), kinds.value, BytesOf<decltype(table)>>,
                      table, scale, *parts);
  };
  return StartLists(lists, true, start);
}

template <bool kMaximum, typename Write>
int32_t StartAll(AnyopCall* call, const Parts& parts, const Write& write) {
  return Launch{dim3(1), dim3(kTotalThreads), 0, true}.Run(call, JoinAll<kMaximum, Write>, parts,
                                                           write);
}

template <bool kMaximum, typename Write>
int32_t StartEach(AnyopCall* call, const Parts& parts, const Write& write, int sets = 1) {
  if (!parts.N) return kAnyopOk;
  const dim3 blocks(static_cast<unsigned>(sets * parts.N)),
      threads(parts.chunks / parts.N < 64 ? 32 : 256);
  return Launch{blocks, threads, 0, true}.Run(call, JoinEach<kMaximum, Write>, parts, write);
}

// What writes float32 where it is asked for.
struct WriteFloat {
  float* to;
  __device__ void operator()(double norm) const { *to = static_cast<float>(norm); }
  __device__ void operator()(int64_t n, double norm) const { to[n] = static_cast<float>(norm); }
};

// total and each (NULL: not asked for).
template <bool kMaximum>
int32_t WriteNorms(AnyopCall* call, const AnyopTensorList& x, const Single& scale,
                   const AnyopTensor* total, const AnyopTensor* each) {
  Parts parts;
  if (int32_t status = StartChunks<kMaximum>(call, x, scale, each, &parts)) return status;
  if (each) {
    const WriteFloat write = {static_cast<float*>(each->data)};
    if (int32_t status = StartEach<kMaximum>(call, parts, write)) return status;
  }
  return StartAll<kMaximum>(call, parts, WriteFloat{static_cast<float*>(total->data)});
}

}  // namespace anyop::cuda

#endif  // ANYOP_OPS_MULTI_TENSOR_CUDA_NORMS_H_
