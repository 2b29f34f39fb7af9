// SPDX-License-Identifier: Apache-2.0
// Gradient of embedding on CUDA: each row of grad_weight is the sum of the rows of grad_out that
// have its index, in their order: the same bits each time. An index outside counts for nothing.
//
// The places of the indices are sorted (anyop/cuda_sort.h). Then the lanes of a row of grad_weight
// add up its rows of grad_out: 64 in float32, their sums in float64, as on the CPU. What a row has
// more than 64 of is added up before, 64 at a time, by as many others.
#include "anyop/cuda_rows.h"
#include "anyop/cuda_sort.h"
#include "anyop/ops/embedding_backward.h"

namespace anyop::cuda {
namespace {

constexpr int kThreads = 256, kPart = 64;

// Indices outside come last. limit: V, or what the type of the indices has.
template <typename Raw>
struct InTable {
  uint64_t limit;
  __device__ uint64_t IndexOf(Raw raw) const { return raw < limit ? raw : ~uint64_t{0}; }
  __device__ Raw operator()(Raw raw) const { return static_cast<Raw>(IndexOf(raw)); }
};

struct Sums {
  const char* grad_out;
  char* grad_weight;
  char* parts;            // (rows / kPart, D) of Wide: that of the part whose end is in [64 i, ...)
  const int64_t* starts;  // (V + 1): where in places
  const int64_t* places;  // rows of grad_out in the order of their indices
  int64_t rows, V, D;
  int lanes;
};

// starts[v]: how many items come before v.
template <typename Raw>
__global__ void __launch_bounds__(kThreads)
    FindStarts(const Raw* sorted, InTable<Raw> place, int64_t rows, int64_t V, int64_t* starts) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t v = int64_t{blockIdx.x} * kThreads + threadIdx.x; v <= V; v += step) {
    int64_t begin = 0, end = rows;
    while (begin < end) {
      const int64_t middle = (begin + end) / 2;
      if (place.IndexOf(sorted[middle]) < static_cast<uint64_t>(v)) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    starts[v] = begin;
  }
}

// The sum of rows places[begin], ..., in their order; up to kPart of them.
template <typename T, int kPer>
__device__ Piece<Wide<T>, kPer> SumRows(const Sums& p, int64_t begin, int64_t end, int64_t at) {
  const auto* grad = reinterpret_cast<const T*>(p.grad_out) + at * kPer;
  Piece<Wide<T>, kPer> sum = {};
#pragma unroll 4
  for (int64_t i = begin; i < end; ++i) {
    const auto piece = ReadPiece<kPer>(grad + p.places[i] * p.D, true);
#pragma unroll
    for (int k = 0; k < kPer; ++k) sum.at[k] += piece.at[k];
  }
  return sum;
}

// Lanes take the part that holds place kPart * i + kPart - 1, if it begins behind kPart * i.
template <typename T, int kPer, typename Raw>
__global__ void __launch_bounds__(kThreads)
    SumParts(const __grid_constant__ Sums p, const Raw* sorted, InTable<Raw> place) {
  const int lane = threadIdx.x % p.lanes, of_block = blockDim.x / p.lanes;
  const int64_t count = p.rows / kPart;
  for (int64_t i = int64_t{blockIdx.x} * of_block + threadIdx.x / p.lanes; i < count;
       i += int64_t{gridDim.x} * of_block) {
    const int64_t inside = i * kPart + kPart - 1;
    const uint64_t v = place.IndexOf(sorted[inside]);
    if (v >= place.limit) continue;
    const int64_t first = p.starts[v], end = p.starts[v + 1];
    const int64_t begin = first + (inside - first) / kPart * kPart;
    if (end - first <= kPart || begin < i * kPart || begin + kPart > end) continue;
    auto* to = reinterpret_cast<Piece<Wide<T>, kPer>*>(p.parts) + i * (p.D / kPer);
    for (int64_t at = lane; at < p.D / kPer; at += p.lanes)
      to[at] = SumRows<T, kPer>(p, begin, begin + kPart, at);
  }
}

template <typename T, int kPer>
__global__ void __launch_bounds__(kThreads) WriteSums(const __grid_constant__ Sums p) {
  using W = Wide<T>;
  const int lane = threadIdx.x % p.lanes, of_block = blockDim.x / p.lanes;
  for (int64_t v = int64_t{blockIdx.x} * of_block + threadIdx.x / p.lanes; v < p.V;
       v += int64_t{gridDim.x} * of_block) {
    const int64_t first = p.starts[v], end = p.starts[v + 1];
    T* row = reinterpret_cast<T*>(p.grad_weight) + v * p.D;
    for (int64_t at = lane; at < p.D / kPer; at += p.lanes) {
      double whole[kPer] = {};
      int64_t begin = first;
      if (end - first > kPart) {
        const auto* parts = reinterpret_cast<const Piece<W, kPer>*>(p.parts) + at;
#pragma unroll 4
        for (; begin + kPart <= end; begin += kPart) {
          const Piece<W, kPer> part = parts[begin / kPart * (p.D / kPer)];
#pragma unroll
          for (int k = 0; k < kPer; ++k) whole[k] += static_cast<double>(part.at[k]);
        }
      }
      Piece<W, kPer> sum = SumRows<T, kPer>(p, begin, end, at);
      if (begin > first) {
#pragma unroll
        for (int k = 0; k < kPer; ++k) sum.at[k] = static_cast<W>(whole[k] + sum.at[k]);
      }
      WritePiece<kPer>(row + at * kPer, true, sum);
    }
  }
}

template <typename T, int kPer, typename Raw>
int32_t RunSums(AnyopCall* call, Sums p, const Raw* sorted, InTable<Raw> place) {
  const int64_t parts = p.rows / kPart;
  p.parts = static_cast<char*>(parts ? call->workspace(call, parts * p.D * int64_t{sizeof(Wide<T>)})
                                     : nullptr);
  if (parts && !p.parts) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  const RowThreads threads(p.D / kPer, 1, kThreads);
  p.lanes = threads.lanes;
  if (parts) {
    if (int32_t status =
            threads.LaunchFor(parts).Run(call, SumParts<T, kPer, Raw>, p, sorted, place))
      return status;
  }
  return threads.LaunchFor(p.V).Run(call, WriteSums<T, kPer>, p);
}

template <typename Raw>
int32_t Run(const EmbeddingBackwardArgs& args, AnyopCall* call) {
  const int64_t rows = args.rows, V = args.V;
  auto* memory =
      static_cast<int64_t*>(call->workspace(call, (V + 1 + 2 * rows) * int64_t{sizeof(int64_t)}));
  if (!memory) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  int64_t *starts = memory, *places = starts + V + 1;
  auto* sorted = reinterpret_cast<Raw*>(places + rows);
  constexpr int64_t kMost = sizeof(Raw) == 4 ? int64_t{1} << 31 : INT64_MAX;
  const InTable<Raw> place = {static_cast<uint64_t>(V < kMost ? V : kMost)};
  int digits = 1;
  while (digits < int{sizeof(Raw)} && place.limit >> (digits * kDigitBits)) ++digits;
  const RowSort<Raw, InTable<Raw>> sort = {
      static_cast<const Raw*>(args.indices->data), 1, rows, rows, sorted, places, place, digits};
  if (int32_t status = RunRowSort(call, sort)) return status;
  const int64_t blocks = CeilDiv(V + 1, kThreads);
  const Launch find{dim3(static_cast<unsigned>(blocks < 0x7fffffff ? blocks : 0x7fffffff)),
                    dim3(kThreads)};
  const Raw* found = sorted;
  if (int32_t status = find.Run(call, FindStarts<Raw>, found, place, rows, V, starts))
    return status;
  const Sums p = {static_cast<const char*>(args.grad_out->data),
                  static_cast<char*>(args.grad_weight->data),
                  nullptr,
                  starts,
                  places,
                  rows,
                  V,
                  args.D,
                  0};
  return WithFloating(AnyopDtypeOf(args.grad_out), [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) < 8) {
      if (args.D % kPerVector<T> == 0 && IsAligned(p.grad_out, 16) && IsAligned(p.grad_weight, 16))
        return RunSums<T, kPerVector<T>>(call, p, found, place);
    }
    return RunSums<T, 1>(call, p, found, place);
  });
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_embedding_backward_cuda(const EmbeddingBackwardArgs* args,
                                                 AnyopCall* call) {
  using namespace anyop::cuda;
  if (args->V == 0 || args->D == 0) return kAnyopOk;
  return args->indices->dtype_bits == 32 ? Run<uint32_t>(*args, call) : Run<uint64_t>(*args, call);
}
