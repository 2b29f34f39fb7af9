/* SPDX-License-Identifier: Apache-2.0 */
/* For CUDA kernels over rows: where a row lies, and what the threads that share one find together.
 */
#ifndef ANYOP_CUDA_ROWS_H_
#define ANYOP_CUDA_ROWS_H_

#include "anyop/cuda.h"

namespace anyop::cuda {

// The rows of a tensor of shape (*, D) whose last dimension is contiguous: leading dimensions that
// lie like one are joined, which leaves one of almost every tensor.
template <typename T>
struct Rows {
  static constexpr int kMaxRank = 31;
  T* data;
  int ndim;
  int64_t stride;                          // of the last leading dimension
  int64_t size[kMaxRank], step[kMaxRank];  // of all; read only when there are several

  bool HasOneStride() const { return ndim <= 1; }
  // Of rows that have one stride: few registers.
  __device__ T* At(int64_t row) const { return data + row * stride; }
  __device__ T* operator[](int64_t row) const { return ndim <= 1 ? At(row) : data + Find(row); }

 private:
  __device__ int64_t Find(int64_t row) const {
    int64_t offset = 0;
#pragma unroll 1
    for (int d = ndim - 1; d > 0; --d) {
      offset += row % size[d] * step[d];
      row /= size[d];
    }
    return offset + row * step[0];
  }
};

template <typename T>
Rows<T> RowsOf(const AnyopTensor* tensor) {
  Rows<T> rows = {};
  rows.data = static_cast<T*>(tensor->data);
  for (int d = 0; d < tensor->ndim - 1; ++d) {
    const int64_t size = tensor->shape[d], step = tensor->strides[d];
    if (size == 1) continue;
    int& n = rows.ndim;
    if (n && rows.step[n - 1] == size * step) {
      rows.size[n - 1] *= size;
      rows.step[n - 1] = step;
    } else {
      rows.size[n] = size;
      rows.step[n++] = step;
    }
  }
  rows.stride = rows.ndim ? rows.step[rows.ndim - 1] : 0;
  return rows;
}

// n / lanes for a power of two.
__device__ inline int DivideByLanes(int n, int lanes) { return n >> (31 - __clz(lanes)); }

// Sum over the first `lanes` threads (a power of two up to 32) of each such run in the warp.
template <typename Wide>
__device__ Wide SumLanes(Wide v, int lanes) {
  for (int step = lanes / 2; step; step /= 2) v += __shfl_xor_sync(~0u, v, step);
  return v;
}

// ---- the threads of a row ----

// Threads of a row and of a block, for so many pieces of which a thread takes some.
struct RowThreads {
  int lanes, threads;
  RowThreads(int64_t pieces, int of_thread, int most) {
    const int64_t needed = CeilDiv(pieces, of_thread);
    lanes = 1;
    while (lanes < needed && lanes < 32) lanes *= 2;
    if (needed > 32) lanes = static_cast<int>(needed < most ? CeilDiv(needed, 32) * 32 : most);
    threads = lanes <= 32 ? 128 : lanes;
  }
  Launch LaunchFor(int64_t rows) const {
    const int64_t blocks = CeilDiv(rows, threads / lanes);
    return {dim3(static_cast<unsigned>(blocks < 0x7fffffff ? blocks : 0x7fffffff)), dim3(threads)};
  }
};

constexpr int kMaxWarps = 32;
constexpr int kMaxSums = 3;  // of one reduction
template <typename W>
using Partials = W[2][kMaxSums][kMaxWarps];  // reductions take turns

// What holds for all kinds of rows: which one, who shares it, and what they find together.
template <typename W>
class RowTeam {
 public:
  __device__ RowTeam(int lanes, Partials<W>& partials) : lanes_(lanes), partials_(partials) {}

  __device__ int64_t index() const { return index_; }
  // One thread of a row that is there: writes what a row has one of.
  __device__ bool IsFirst() const { return inside_ && lane() == 0; }

  // Of each thread's value; every thread gets the same bits.
  __device__ W Total(W v) {
    return Join(v, W(0), [](W a, W b) { return a + b; });
  }
  __device__ W Greatest(W v) {
    return Join(v, static_cast<W>(-INFINITY), [](W a, W b) { return fmax(a, b); });
  }
  // Of the first `lanes` threads (a power of two up to 32) of each such run in the warp.
  template <typename F>
  __device__ W JoinLanes(W v, int lanes, const F& join) const {
    if (lanes == 32) {
#pragma unroll
      for (int step = 16; step; step /= 2) v = join(v, __shfl_xor_sync(~0u, v, step));
      return v;
    }
    for (int step = lanes / 2; step; step /= 2) v = join(v, __shfl_xor_sync(~0u, v, step));
    return v;
  }
  // By any join of two; `none` is what changes nothing.
  template <typename F>
  __device__ W Join(W v, W none, const F& join) {
    if (InWarp()) return JoinLanes(v, lanes_, join);
    Publish(v, 0, join);
    __syncthreads();
    v = Collect(none, 0, join);
    turn_ ^= 1;
    return v;
  }
  // Several at once, each in place.
  template <typename... More>
  __device__ void Totals(W& first, More&... more) {
    const auto add = [](W a, W b) { return a + b; };
    W* const values[] = {&first, &more...};
    constexpr int kCount = 1 + sizeof...(More);
    static_assert(kCount <= kMaxSums, "");
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (InWarp()) {
        *values[i] = JoinLanes(*values[i], lanes_, add);
      } else {
        Publish(*values[i], i, add);
      }
    }
    if (InWarp()) return;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kCount; ++i) *values[i] = Collect(W(0), i, add);
    turn_ ^= 1;
  }
  // A sum, and a join of two as above.
  template <typename F>
  __device__ void TotalAnd(W& sum, W& other, W none, const F& join) {
    const auto add = [](W a, W b) { return a + b; };
    if (InWarp()) {
      sum = JoinLanes(sum, lanes_, add);
      other = JoinLanes(other, lanes_, join);
      return;
    }
    Publish(sum, 0, add);
    Publish(other, 1, join);
    __syncthreads();
    sum = Collect(W(0), 0, add);
    other = Collect(none, 1, join);
    turn_ ^= 1;
  }

 protected:
  __device__ bool InWarp() const { return lanes_ <= 32; }
  __device__ int lane() const {
    const int thread = static_cast<int>(threadIdx.x);
    return InWarp() ? thread & (lanes_ - 1) : thread;
  }
  __device__ void Take(int64_t row, int64_t rows) {
    index_ = row;
    inside_ = row < rows;
  }

  int lanes_;  // threads of a row: a power of two up to 32, or the whole block
  int64_t index_ = 0;
  bool inside_ = false;

 private:
  template <typename F>
  __device__ void Publish(W v, int which, const F& join) {
    v = JoinLanes(v, 32, join);
    if (threadIdx.x % 32 == 0) partials_[turn_][which][threadIdx.x / 32] = v;
  }
  template <typename F>
  __device__ W Collect(W none, int which, const F& join) {
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    return JoinLanes(lane < warps ? partials_[turn_][which][lane] : none, 32, join);
  }

  Partials<W>& partials_;
  int turn_ = 0;
};

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_ROWS_H_
