/* SPDX-License-Identifier: Apache-2.0 */
/* For CUDA kernels over rows: where a row lies, and sums over the threads that share one. */
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

// Whether every row can be read in pieces of 16 bytes.
template <typename T>
bool InVectors(const Rows<T>& rows, int64_t D) {
  bool fits = IsAligned(rows.data, 16) && D % kPerVector<T> == 0;
  for (int d = 0; d < rows.ndim; ++d) fits = fits && rows.step[d] % kPerVector<T> == 0;
  return fits;
}

constexpr int kMaxWarps = 32;

// Sum over the first `lanes` threads (a power of two up to 32) of each such run in the warp.
template <typename Wide>
__device__ Wide SumLanes(Wide v, int lanes) {
  for (int step = lanes / 2; step; step /= 2) v += __shfl_xor_sync(~0u, v, step);
  return v;
}

// Sum over the threads of a row: `lanes` up to 32, else the whole block. Every thread gets the same
// bits. partial: shared memory that the next sum does not use.
template <typename Wide>
__device__ Wide SumRow(Wide v, int lanes, Wide (&partial)[kMaxWarps]) {
  if (lanes <= 32) return SumLanes(v, lanes);
  v = SumLanes(v, 32);
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  if (lane == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  return SumLanes(lane < warps ? partial[lane] : Wide(0), 32);
}

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_ROWS_H_
