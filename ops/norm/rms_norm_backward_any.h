// SPDX-License-Identifier: Apache-2.0
// rms_norm_backward for rows of any length and place, and the sum of the parts of grad_weight.
//
// Who does what: a block takes a row and reads it twice, for its sums and for grad_x; it notes the
// row's scale. Then blocks of 32 pieces of columns by kRowLanes lanes read some rows again and add
// up grad_weight in a part of their own; AddParts adds the parts in order.
#pragma once

#include "anyop/cuda_rows.h"

namespace anyop::cuda {
namespace {

template <typename T>
struct Gradients {
  Rows<const T> grad_out, x;
  Rows<T> grad_x;  // data is NULL when it is not wanted
  const T* weight;
  T* grad_weight;   // likewise
  Wide<T>* parts;   // (parts, D): sums of grad_weight over some rows
  Wide<T>* scales;  // (rows): 1 / root mean square
  int64_t rows, D;
  Wide<T> eps, inverse_D;
  int lanes;                            // of SumRow
  bool grad_x_aligned, weight_aligned;  // to 16 bytes, in every row
};

// scale * (product - normal * slope)
template <typename W>
__device__ W GradientOfX(W product, W normal, W scale, W slope) {
  return scale * MulAdd(-normal, slope, product);
}

template <typename T, int kPer>
__global__ void __launch_bounds__(1024) GradientsOfRows(const __grid_constant__ Gradients<T> p) {
  using W = Wide<T>;
  __shared__ W partial[2][2][kMaxWarps];
  const int64_t pieces = p.D / kPer;
  int turn = 0;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x, turn ^= 1) {
    const T *grad = p.grad_out[row], *x = p.x[row];
    W squares = 0, products = 0;
    for (int64_t i = threadIdx.x; i < pieces; i += blockDim.x) {
      const auto g = ReadPiece<kPer>(grad + i * kPer, true),
                 v = ReadPiece<kPer>(x + i * kPer, true),
                 w = ReadPiece<kPer>(p.weight + i * kPer, p.weight_aligned);
#pragma unroll
      for (int k = 0; k < kPer; ++k) {
        squares = MulAdd(v.at[k], v.at[k], squares);
        products = MulAdd(g.at[k] * w.at[k], v.at[k], products);
      }
    }
    squares = SumRow(squares, p.lanes, partial[turn][0]);
    products = SumRow(products, p.lanes, partial[turn][1]);
    const W scale = ReciprocalRoot(squares * p.inverse_D + p.eps);
    const W slope = products * p.inverse_D * scale;
    if (p.scales && threadIdx.x == 0) p.scales[row] = scale;
    if (!p.grad_x.data) continue;
    T* to = p.grad_x[row];
    for (int64_t i = threadIdx.x; i < pieces; i += blockDim.x) {
      const auto g = ReadPiece<kPer>(grad + i * kPer, true),
                 v = ReadPiece<kPer>(x + i * kPer, true),
                 w = ReadPiece<kPer>(p.weight + i * kPer, p.weight_aligned);
      Piece<W, kPer> result;
#pragma unroll
      for (int k = 0; k < kPer; ++k)
        result.at[k] = GradientOfX(g.at[k] * w.at[k], v.at[k] * scale, scale, slope);
      WritePiece<kPer>(to + i * kPer, p.grad_x_aligned, result);
    }
  }
}

constexpr int kRowLanes = 8;  // threads that share columns

// Block (b, c): 32 pieces of columns from 32 b on, rows c * kRowLanes + lane, ... of every
// gridDim.y * kRowLanes.
template <typename T, int kPer>
__global__ void __launch_bounds__(32 * kRowLanes)
    GradientOfColumns(const __grid_constant__ Gradients<T> p) {
  __shared__ Wide<T> sums[kRowLanes][kPer][32];
  const int64_t d = (int64_t{blockIdx.x} * 32 + threadIdx.x) * kPer;
  Piece<Wide<T>, kPer> sum = {};
  if (d < p.D) {
    const int64_t step = int64_t{gridDim.y} * kRowLanes;
#pragma unroll 4
    for (int64_t row = int64_t{blockIdx.y} * kRowLanes + threadIdx.y; row < p.rows; row += step) {
      const auto g = ReadPiece<kPer>(p.grad_out[row] + d, true),
                 v = ReadPiece<kPer>(p.x[row] + d, true);
      const Wide<T> scale = p.scales[row];
#pragma unroll
      for (int k = 0; k < kPer; ++k) sum.at[k] = MulAdd(g.at[k], v.at[k] * scale, sum.at[k]);
    }
  }
#pragma unroll
  for (int k = 0; k < kPer; ++k) sums[threadIdx.y][k][threadIdx.x] = sum.at[k];
  __syncthreads();
  if (threadIdx.y || d >= p.D) return;
#pragma unroll
  for (int k = 0; k < kPer; ++k) {
    for (int i = 1; i < kRowLanes; ++i) sum.at[k] += sums[i][k][threadIdx.x];
    p.parts[blockIdx.y * p.D + d + k] = sum.at[k];
  }
}

// grad_weight: 32 columns a block. A thread adds kPer columns (4, or 1) of the parts lane, lane +
// kLanes, ..., and the lanes meet in shared memory.
template <typename T, int kPer>
__global__ void __launch_bounds__(256)
    SumOfParts(const Wide<T>* parts, T* grad_weight, int count, int64_t D) {
  constexpr int kColumns = 32 / kPer, kLanes = 256 / kColumns;
  __shared__ double sums[kLanes][33];  // hundreds of parts would lose digits in float32
  WaitForWork();
  const int column = threadIdx.x % kColumns * kPer, lane = threadIdx.x / kColumns;
  const int64_t first = int64_t{blockIdx.x} * 32;
  double sum[kPer] = {};
  if (first + column < D) {
    const auto* from = reinterpret_cast<const Vector<Wide<T>, kPer>*>(parts + first + column);
#pragma unroll 5
    for (int i = lane; i < count; i += kLanes) {
      const Vector<Wide<T>, kPer> part = from[i * (D / kPer)];
#pragma unroll
      for (int k = 0; k < kPer; ++k) sum[k] += part.at[k];
    }
  }
#pragma unroll
  for (int k = 0; k < kPer; ++k) sums[lane][column + k] = sum[k];
  __syncthreads();
  for (int d = threadIdx.x / 32; d < 32 && first + d < D; d += 8) {
    const double total = SumLanes(threadIdx.x % 32 < kLanes ? sums[threadIdx.x % 32][d] : 0, 32);
    if (threadIdx.x % 32 == 0) grad_weight[first + d] = Narrow<T>(static_cast<Wide<T>>(total));
  }
}

// Of 0 parts: zeros. overlaps: the kernel before calls LetNextStart.
template <typename T>
int32_t AddParts(AnyopCall* call, const Gradients<T>& p, int count, bool overlaps) {
  const Launch launch{dim3(static_cast<unsigned>(CeilDiv(p.D, 32))), dim3(256), 0, overlaps};
  const Wide<T>* parts = p.parts;
  return p.D % 4 ? launch.Run(call, SumOfParts<T, 1>, parts, p.grad_weight, count, p.D)
                 : launch.Run(call, SumOfParts<T, 4>, parts, p.grad_weight, count, p.D);
}

// D beyond this many columns would need more blocks than a grid has.
constexpr int64_t kMaxD = int64_t{32} * 0x7fffffff;

template <typename T>
int32_t RunColumns(AnyopCall* call, Gradients<T> p, bool vectors, const Limits& limits) {
  // Enough blocks for the device, no more parts than needed for that.
  const int64_t blocks = CeilDiv(p.D, 32 * (vectors ? kPerVector<T> : 1));
  int64_t parts = CeilDiv(int64_t{limits.multiprocessors} * 8, blocks);
  const int64_t most = CeilDiv(p.rows, kRowLanes);
  parts = parts < most ? parts : most;
  p.parts = static_cast<Wide<T>*>(call->workspace(call, parts * p.D * int64_t{sizeof(Wide<T>)}));
  if (!p.parts) return kAnyopOutOfMemory;
  const Launch launch{dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(parts)),
                      dim3(32, kRowLanes)};
  if (int32_t status = vectors ? launch.Run(call, GradientOfColumns<T, kPerVector<T>>, p)
                               : launch.Run(call, GradientOfColumns<T, 1>, p))
    return status;
  return AddParts(call, p, static_cast<int>(parts), false);
}

template <typename T>
int32_t RunAny(AnyopCall* call, Gradients<T> p, bool vectors, const Limits& limits) {
  if (p.D > kMaxD) return call->fail(call, kAnyopNotImplemented, "rows are longer than 2^36");
  if (p.grad_weight) {
    p.scales = static_cast<Wide<T>*>(call->workspace(call, p.rows * int64_t{sizeof(Wide<T>)}));
    if (!p.scales) return kAnyopOutOfMemory;
  }
  const int64_t pieces = vectors ? p.D / kPerVector<T> : p.D;
  const int64_t needed = CeilDiv(CeilDiv(pieces, 4), 32) * 32;
  const int64_t threads = needed < 64 ? 64 : needed > 1024 ? 1024 : needed;
  p.lanes = 1024;  // the whole block, however large it is
  constexpr int64_t kMaxGrid = 0x7fffffff;
  const Launch launch{dim3(static_cast<unsigned>(p.rows < kMaxGrid ? p.rows : kMaxGrid)),
                      dim3(static_cast<unsigned>(threads))};
  if (int32_t status = vectors ? launch.Run(call, GradientsOfRows<T, kPerVector<T>>, p)
                               : launch.Run(call, GradientsOfRows<T, 1>, p))
    return status;
  return p.grad_weight ? RunColumns(call, p, vectors, limits) : kAnyopOk;
}

}  // namespace
}  // namespace anyop::cuda
