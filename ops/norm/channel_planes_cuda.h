// SPDX-License-Identifier: Apache-2.0
// A tensor of batch, channels and further sizes on CUDA: as rows where the channels come before
// these, in parts of some pixels where they come last.
#pragma once

#include <algorithm>
#include <cstring>

#include "anyop/cuda/row.h"

namespace anyop::cuda {
namespace {

inline bool IsSilu(const AnyopString& activation) {
  return activation.count == 4 && std::memcmp(activation.data, "silu", 4) == 0;
}

// A contiguous tensor as so many rows.
struct AsRows {
  AnyopTensor tensor;
  int64_t shape[2], strides[2];

  AsRows(const AnyopTensor* of, int64_t rows, int64_t D)
      : tensor(of ? *of : AnyopTensor()), shape{rows, D}, strides{D, 1} {
    tensor.ndim = 2;
    tensor.shape = shape;
    tensor.strides = strides;
  }
  AsRows(const AsRows&) = delete;
};

// A number of each channel, of any floating dtype, or none.
struct OfChannels {
  const char* data;
  AnyopDtype kind;

  explicit OfChannels(const AnyopTensor* tensor)
      : data(tensor ? static_cast<const char*>(tensor->data) : nullptr),
        kind(tensor ? AnyopDtypeOf(tensor) : kAnyopNoDtype) {}
  template <typename W>
  __device__ W At(int64_t c, W absent) const {
    return data ? ReadFloating<W>(data, c, kind) : absent;
  }
};

// How many elements each process has, of any dtype of batch_norm_combine.
struct Counts {
  const void* data;
  AnyopDtype kind;
  int64_t P, stride;

  explicit Counts(const AnyopTensor* tensor)
      : data(tensor ? tensor->data : nullptr),
        kind(tensor ? AnyopDtypeOf(tensor) : kAnyopNoDtype),
        P(tensor ? tensor->shape[0] : 0),
        stride(tensor ? tensor->strides[0] : 0) {}
  template <typename W>
  __device__ W At(int64_t process) const {
    const int64_t p = process * stride;
    if (kind == kAnyopInt32) return static_cast<W>(static_cast<const int32_t*>(data)[p]);
    if (kind == kAnyopInt64) return static_cast<W>(static_cast<const int64_t*>(data)[p]);
    return ReadFloating<W>(static_cast<const char*>(data), p, kind);
  }
};

template <typename W>
__device__ W Silu(W z) {
  const W least = sizeof(W) == 8 ? W(-700) : W(-80);  // at infinity the product has its limit
  return (z < least ? least : z) * Reciprocal(1 + Exponential(-z));
}
template <typename W>
__device__ W SiluSlope(W z) {
  const W s = Reciprocal(1 + Exponential(-z)), most = sizeof(W) == 8 ? W(700) : W(80);
  const W near = z < -most ? -most : z > most ? most : z;
  return s + near * s * (1 - s);
}

// ---- channels last ----

constexpr int kPartThreads = 256, kMostColumns = 64;

// Parts of some pixels of one n. A thread has one column of kPer channels, the same of all its
// pixels; blockIdx: n and part; columns.
struct Parts {
  int64_t C, S, G;
  int per, columns, rows;  // channels of a piece; threads of a block side by side, and of pixels
  int64_t pixels, parts;   // of a part; of one n

  Parts(int64_t N, int64_t C, int64_t S, int64_t G, int per, int64_t wanted = 2048)  // blocks
      : C(C), S(S), G(G), per(per) {
    const int64_t pieces = C / per;
    columns = static_cast<int>(std::min<int64_t>(pieces, kMostColumns));
    rows = kPartThreads / columns;
    const int64_t blocks = std::max<int64_t>(N * CeilDiv(pieces, columns), 1);
    const int64_t most = CeilDiv(S, int64_t{8} * rows);  // 8 pixels of a thread, or more
    pixels = CeilDiv(S, std::max<int64_t>(std::min<int64_t>(CeilDiv(wanted, blocks), most), 1));
    parts = CeilDiv(S, pixels);
  }
  Launch LaunchFor(int64_t N) const {
    return {
        dim3(static_cast<unsigned>(N * parts), static_cast<unsigned>(CeilDiv(C / per, columns))),
        dim3(kPartThreads)};
  }
  __device__ int row() const { return static_cast<int>(threadIdx.x) / columns; }
  // Of this thread; C where it has none.
  __device__ int64_t Channel() const {
    const int64_t piece = int64_t{blockIdx.y} * columns + threadIdx.x % columns;
    return row() < rows && piece < C / per ? piece * per : C;
  }
  __device__ int64_t First(int64_t part) const { return part * pixels; }
  __device__ int64_t Behind(int64_t part) const {
    return (part + 1) * pixels < S ? (part + 1) * pixels : S;
  }
  __device__ int64_t GroupOf(int64_t n, int64_t c) const { return n * G + c / (C / G); }
};

// write(i, read(i)) for every step-th i from first on; two are read before one is written.
template <typename Read, typename Write>
__device__ __forceinline__ void ReadTwoAtOnce(int64_t first, int64_t behind, int64_t step,
                                              const Read& read, const Write& write) {
  for (int64_t i = first; i < behind; i += 2 * step) {
    const auto one = read(i);
    if (i + step < behind) {
      const auto other = read(i + step);
      write(i, one);
      write(i + step, other);
    } else {
      write(i, one);
    }
  }
}

// The sums of the threads that share a column, in order of their rows; right for those of row 0.
template <typename W, int kPer>
__device__ void AddRows(const Parts& p, W (&first)[kPer], W (&second)[kPer]) {
  __shared__ W memory[2 * kPer][kPartThreads];
#pragma unroll
  for (int k = 0; k < kPer; ++k) {
    memory[k][threadIdx.x] = first[k];
    memory[kPer + k][threadIdx.x] = second[k];
  }
  __syncthreads();
  if (p.row() > 0) return;
  for (int row = 1; row < p.rows; ++row) {
#pragma unroll
    for (int k = 0; k < kPer; ++k) {
      first[k] += memory[k][row * p.columns + threadIdx.x];
      second[k] += memory[kPer + k][row * p.columns + threadIdx.x];
    }
  }
}

// Calls run with the channels of a piece, as a type: 16 bytes of T where all pixels lie so.
template <typename T, typename Run>
int32_t WithPieces(int64_t C, bool aligned, const Run& run) {
  if (aligned && C % kPerVector<T> == 0) return run(std::integral_constant<int, kPerVector<T>>());
  return run(std::integral_constant<int, 1>());
}

}  // namespace
}  // namespace anyop::cuda
