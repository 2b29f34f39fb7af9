/* SPDX-License-Identifier: Apache-2.0 */
// Sums of rows by index on CUDA: each row of a result is the sum of the rows that have its index,
// in their order, or of their products with rows of the same place: the same bits each time. An
// index outside counts for nothing.
//
// The places of the indices are sorted (anyop/cuda/sort.h). Then the lanes of a row of the result
// add up its rows: 64 in float32, their sums in float64, as on the CPU. What a row has more than
// 64 of is added up before, 64 at a time, by as many others.
#ifndef ANYOP_OPS_EMBEDDING_INDEXED_SUMS_CUDA_H_
#define ANYOP_OPS_EMBEDDING_INDEXED_SUMS_CUDA_H_

#include "anyop/cuda/rows.h"
#include "anyop/cuda/sort.h"

namespace anyop::cuda {

struct IndexedSums {
  const AnyopTensor* terms;    // (rows, D)
  const AnyopTensor* factors;  // of each term, as terms; or null
  const AnyopTensor* indices;
  AnyopTensor* out;  // (V, D), of the dtype of terms
  int64_t rows, V, D;
};

namespace {

constexpr int kSumThreads = 256, kPart = 64;

// Indices outside come last. limit: V, or what the type of the indices has.
template <typename Raw>
struct InTable {
  uint64_t limit;
  __device__ uint64_t IndexOf(Raw raw) const { return raw < limit ? raw : ~uint64_t{0}; }
  __device__ Raw operator()(Raw raw) const { return static_cast<Raw>(IndexOf(raw)); }
};

struct Sums {
  const char* terms;
  const char* factors;  // or null
  char* out;
  char* parts;            // (rows / kPart, D) of Wide: that of the part whose end is in [64 i, ...)
  const int64_t* starts;  // (V + 1): where in places
  const int64_t* places;  // rows of terms in the order of their indices
  int64_t rows, V, D;
  int lanes;
};

// starts[v]: how many items come before v.
template <typename Raw>
__global__ void __launch_bounds__(kSumThreads)
    FindStarts(const Raw* sorted, InTable<Raw> place, int64_t rows, int64_t V, int64_t* starts) {
  const int64_t step = int64_t{gridDim.x} * kSumThreads;
  for (int64_t v = int64_t{blockIdx.x} * kSumThreads + threadIdx.x; v <= V; v += step) {
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
template <typename T, int kPer, bool kFactors>
__device__ Piece<Wide<T>, kPer> SumRows(const Sums& p, int64_t begin, int64_t end, int64_t at) {
  const auto* terms = reinterpret_cast<const T*>(p.terms) + at * kPer;
  const auto* factors = reinterpret_cast<const T*>(p.factors) + at * kPer;
  Piece<Wide<T>, kPer> sum = {};
#pragma unroll 4
  for (int64_t i = begin; i < end; ++i) {
    const auto piece = ReadPiece<kPer>(terms + p.places[i] * p.D, true);
    if constexpr (kFactors) {
      const auto factor = ReadPiece<kPer>(factors + p.places[i] * p.D, true);
#pragma unroll
      for (int k = 0; k < kPer; ++k) sum.at[k] += piece.at[k] * factor.at[k];
    } else {
#pragma unroll
      for (int k = 0; k < kPer; ++k) sum.at[k] += piece.at[k];
    }
  }
  return sum;
}

// Lanes take the part that holds place kPart * i + kPart - 1, if it begins behind kPart * i.
template <typename T, int kPer, bool kFactors, typename Raw>
__global__ void __launch_bounds__(kSumThreads)
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
      to[at] = SumRows<T, kPer, kFactors>(p, begin, begin + kPart, at);
  }
}

// Three blocks of a multiprocessor: without a number the compiler spills for the sake of more.
template <typename T, int kPer, bool kFactors>
__global__ void __launch_bounds__(kSumThreads, 3) WriteSums(const __grid_constant__ Sums p) {
  using W = Wide<T>;
  const int lane = threadIdx.x % p.lanes, of_block = blockDim.x / p.lanes;
  for (int64_t v = int64_t{blockIdx.x} * of_block + threadIdx.x / p.lanes; v < p.V;
       v += int64_t{gridDim.x} * of_block) {
    const int64_t first = p.starts[v], end = p.starts[v + 1];
    T* row = reinterpret_cast<T*>(p.out) + v * p.D;
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
      Piece<W, kPer> sum = SumRows<T, kPer, kFactors>(p, begin, end, at);
      if (begin > first) {
#pragma unroll
        for (int k = 0; k < kPer; ++k) sum.at[k] = static_cast<W>(whole[k] + sum.at[k]);
      }
      WritePiece<kPer>(row + at * kPer, true, sum);
    }
  }
}

template <typename T, int kPer, bool kFactors, typename Raw>
int32_t RunSums(AnyopCall* call, Sums p, const Raw* sorted, InTable<Raw> place) {
  const int64_t parts = p.rows / kPart;
  p.parts = static_cast<char*>(parts ? call->workspace(call, parts * p.D * int64_t{sizeof(Wide<T>)})
                                     : nullptr);
  if (parts && !p.parts) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  const RowThreads threads(p.D / kPer, 1, kSumThreads);
  p.lanes = threads.lanes;
  if (parts) {
    if (int32_t status =
            threads.LaunchFor(parts).Run(call, SumParts<T, kPer, kFactors, Raw>, p, sorted, place))
      return status;
  }
  return threads.LaunchFor(p.V).Run(call, WriteSums<T, kPer, kFactors>, p);
}

template <bool kFactors, typename Raw>
int32_t RunOf(AnyopCall* call, AnyopDtype dtype, const Sums& p, const Raw* sorted,
              InTable<Raw> place) {
  return WithFloating(dtype, [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) < 8) {
      if (p.D % kPerVector<T> == 0 && IsAligned(p.terms, 16) && IsAligned(p.factors, 16) &&
          IsAligned(p.out, 16))
        return RunSums<T, kPerVector<T>, kFactors>(call, p, sorted, place);
    }
    return RunSums<T, 1, kFactors>(call, p, sorted, place);
  });
}

template <bool kFactors, typename Raw>
int32_t SortAndSum(AnyopCall* call, const IndexedSums& args) {
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
  const int64_t blocks = CeilDiv(V + 1, kSumThreads);
  const Launch find{dim3(static_cast<unsigned>(blocks < 0x7fffffff ? blocks : 0x7fffffff)),
                    dim3(kSumThreads)};
  const Raw* found = sorted;
  if (int32_t status = find.Run(call, FindStarts<Raw>, found, place, rows, V, starts))
    return status;
  const Sums p = {static_cast<const char*>(args.terms->data),
                  kFactors ? static_cast<const char*>(args.factors->data) : nullptr,
                  static_cast<char*>(args.out->data),
                  nullptr,
                  starts,
                  places,
                  rows,
                  V,
                  args.D,
                  0};
  return RunOf<kFactors>(call, AnyopDtypeOf(args.terms), p, found, place);
}

}  // namespace

// kFactors: whether there are factors; an operator compiles only what it has.
template <bool kFactors>
int32_t SumByIndex(AnyopCall* call, const IndexedSums& args) {
  if (args.V == 0 || args.D == 0) return kAnyopOk;
  return args.indices->dtype_bits == 32 ? SortAndSum<kFactors, uint32_t>(call, args)
                                        : SortAndSum<kFactors, uint64_t>(call, args);
}

}  // namespace anyop::cuda

#endif  // ANYOP_OPS_EMBEDDING_INDEXED_SUMS_CUDA_H_
