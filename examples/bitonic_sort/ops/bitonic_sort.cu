// SPDX-License-Identifier: Apache-2.0
// bitonic_sort on CUDA: a row is sorted in the registers of a warp, a long one in those of a block.
//
// Who does what: L lanes of a warp, a power of two, share a row and hold K integers each
// (sort_key.h): rows of up to 32 elements have K = 1 and L up to 32, so that a warp takes several;
// rows of up to 1,024 have L = 32 and K up to 32; longer ones a block of 2 to 8 warps with K = 32.
// Loads are coalesced: where an element starts does not matter. In the network thread t holds the
// places t K to t K + K - 1, so that of the 55 steps for 1,024 elements 40 are in registers and 15
// exchange by __shfl_xor_sync. Then the places' indices go through shared memory (2 bytes each), so
// that the stores are coalesced too; values are read again from the row, which the caches have.
// Bytes moved an element of size s: 2 s + 8, of which the indices are 8.
#include "anyop/cuda/rows.h"
#include "network.h"
#include "sort_key.h"
#include "sorting/ops/bitonic_sort.h"

namespace anyop::cuda {
namespace {

using sorting::Behind;
using sorting::IndexIn;
using sorting::KeyOf;
using sorting::Order;
using sorting::Pack;
using sorting::Packed;

constexpr int kWarps = 4;      // of a block for short rows: 8.5 KB of shared memory at K = 32
constexpr int kMostHeld = 32;  // integers of a thread

template <typename Raw>
struct Sort {
  Rows<const Raw> x;
  Rows<Raw> values;
  Rows<int64_t> indices;
  int64_t rows;
  int D;
  int lanes;  // of a row: L
  Order<Raw> order;
};

// Where the index of a place is noted: the lanes' runs are one word further apart, so that the 32
// lanes, each at its i-th place, write to 32 banks.
template <int K>
__device__ int NotedAt(int place) {
  return K < 4 ? place : place + place / K * 2;
}
template <int K>
constexpr int kNoted = K < 4 ? 32 * K : 32 * (K + 2);

template <typename Raw, int K>
__global__ void __launch_bounds__(32 * kWarps) SortRows(const __grid_constant__ Sort<Raw> p) {
  __shared__ uint16_t noted[kWarps][kNoted<K>];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int mine = lane % p.lanes, rows_of_warp = 32 / p.lanes;
  const int64_t step = int64_t{gridDim.x} * kWarps * rows_of_warp;
  // All lanes of a warp stay together: the ones without a row sort what is behind every row.
  for (int64_t first = (int64_t{blockIdx.x} * kWarps + warp) * rows_of_warp; first < p.rows;
       first += step) {
    const int64_t row = first + lane / p.lanes;
    const int D = row < p.rows ? p.D : 0;
    const Raw* x = p.x[D ? row : 0];
    Packed<Raw> held[K];
#pragma unroll
    for (int i = 0; i < K; ++i) {
      const int d = i * p.lanes + mine;
      held[i] = d < D ? Pack<Raw>(KeyOf(x[d], p.order), d) : Behind<Raw>(d);
    }
    SortLanes(held, mine, p.lanes);
    __syncwarp();  // the row before is out
#pragma unroll
    for (int i = 0; i < K; ++i)
      noted[warp][NotedAt<K>(lane * K + i)] = static_cast<uint16_t>(IndexIn<Raw>(held[i]));
    __syncwarp();
    Raw* values = p.values[D ? row : 0];
    int64_t* indices = p.indices[D ? row : 0];
#pragma unroll
    for (int i = 0; i < K; ++i) {
      const int d = i * p.lanes + mine;
      if (d >= D) continue;
      const int index = noted[warp][NotedAt<K>((lane - mine) * K + d)];
      values[d] = x[index];
      indices[d] = index;
    }
  }
}

// A block of 2 to 8 warps for each row.
template <typename Raw>
__global__ void __launch_bounds__(sorting::kMaxD / kMostHeld)
    SortLongRows(const __grid_constant__ Sort<Raw> p) {
  constexpr int K = kMostHeld;
  extern __shared__ __align__(16) unsigned char memory[];
  auto* exchange = reinterpret_cast<Packed<Raw>*>(memory);
  auto* noted = reinterpret_cast<uint16_t*>(memory);
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const Raw* x = p.x[row];
    Packed<Raw> held[K];
#pragma unroll
    for (int i = 0; i < K; ++i) {
      const int d = i * blockDim.x + threadIdx.x;
      held[i] = d < p.D ? Pack<Raw>(KeyOf(x[d], p.order), d) : Behind<Raw>(d);
    }
    SortWarps(held, exchange);
    __syncthreads();  // the last step is read
#pragma unroll
    for (int i = 0; i < K; ++i)
      noted[NotedAt<K>(threadIdx.x * K + i)] = static_cast<uint16_t>(IndexIn<Raw>(held[i]));
    __syncthreads();
    Raw* values = p.values[row];
    int64_t* indices = p.indices[row];
    for (int d = threadIdx.x; d < p.D; d += blockDim.x) {
      const int index = noted[NotedAt<K>(d)];
      values[d] = x[index];
      indices[d] = index;
    }
  }
}

dim3 GridOf(int64_t blocks) {
  constexpr int64_t kMaxGrid = 0x7fffffff;
  return dim3(static_cast<unsigned>(blocks < kMaxGrid ? blocks : kMaxGrid));
}

template <typename Raw, int K>
int32_t Start(AnyopCall* call, const Sort<Raw>& p) {
  const Launch launch{GridOf(CeilDiv(p.rows, int64_t{kWarps} * (32 / p.lanes))), dim3(32 * kWarps)};
  return launch.Run(call, SortRows<Raw, K>, p);
}

// The exchange needs more shared memory than the notes: an integer for each place.
template <typename Raw>
int32_t StartLong(AnyopCall* call, const Sort<Raw>& p) {
  int threads = 64;
  while (threads * kMostHeld < p.D) threads *= 2;
  const int bytes = threads * kMostHeld * static_cast<int>(sizeof(Packed<Raw>));
  const cudaError_t error =
      cudaFuncSetAttribute(SortLongRows<Raw>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (int32_t status = Check(call, error, "asking for shared memory")) return status;
  const Launch launch{GridOf(p.rows), dim3(static_cast<unsigned>(threads)),
                      static_cast<size_t>(bytes)};
  return launch.Run(call, SortLongRows<Raw>, p);
}

template <typename Raw>
int32_t Run(const BitonicSortArgs& args, AnyopCall* call, const Order<Raw>& order) {
  Sort<Raw> p = {RowsOf<const Raw>(args.x),
                 RowsOf<Raw>(args.values),
                 RowsOf<int64_t>(args.indices),
                 args.rows,
                 static_cast<int>(args.D),
                 1,
                 order};
  while (p.lanes < p.D && p.lanes < 32) p.lanes *= 2;
  const int64_t per_lane = CeilDiv(p.D, 32);
  if (per_lane <= 1) return Start<Raw, 1>(call, p);
  if (per_lane <= 2) return Start<Raw, 2>(call, p);
  if (per_lane <= 4) return Start<Raw, 4>(call, p);
  if (per_lane <= 8) return Start<Raw, 8>(call, p);
  if (per_lane <= 16) return Start<Raw, 16>(call, p);
  if (per_lane <= 32) return Start<Raw, 32>(call, p);
  return StartLong(call, p);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t sorting_bitonic_sort_cuda(const BitonicSortArgs* args, AnyopCall* call) {
  if (args->D == 0 || args->rows == 0) return kAnyopOk;
  return anyop::sorting::WithOrder(AnyopDtypeOf(args->x), args->descending, [&](const auto& order) {
    return anyop::cuda::Run(*args, call, order);
  });
}
