// SPDX-License-Identifier: Apache-2.0
// The products of grouped_linear_backward, whichever kernel computes them, and the gradient of the
// bias.
#pragma once

#include "../linear/tile_problem.h"
#include "anyop/ops/grouped_linear_backward.h"

namespace anyop::cuda {
namespace {

// grad_bias[e] is the sum of grad_out's rows (capacity columns) of segment e, times their scales
// where there are any. A block has 32 columns; warp w adds rows w, w + 8, ... in order, then the
// warps' sums are added in order.
template <typename T>
__global__ __launch_bounds__(256) void SumSegments(const __grid_constant__ TileProblem p) {
  __shared__ float parts[8][32];
  const int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  const int column = blockIdx.x * 32 + lane;
  for (int expert = blockIdx.y; expert < p.experts; expert += gridDim.y) {
    const TilePlace segment = SegmentOf(p, expert);
    float sum = 0;
    if (column < p.capacity)
      for (int row = segment.row + warp; row < segment.end; row += 8)
        sum += RowScale(p, row) *
               Widen(static_cast<const T*>(p.x)[int64_t{row} * p.capacity + column]);
    parts[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && column < p.capacity) {
      for (int w = 1; w < 8; ++w) sum += parts[w][lane];
      StoreOne(p.result, p.out, int64_t{expert} * p.capacity + column, sum);
    }
    __syncthreads();
  }
}

// of_x and of_weight launch the two products, of their problems: x is grad_out in both. grad_x:
// rows K by weight (experts K N) to rows N. grad_weight: rows capacity by weight (rows N), to
// experts capacity N; K is of no use.
template <typename T, typename OfX, typename OfWeight>
int32_t RunGradients(const GroupedLinearBackwardArgs* args, AnyopCall* call, const OfX& of_x,
                     const OfWeight& of_weight) {
  if (int32_t status = CheckCounts(call, args->T, args->E * args->N, args->E * args->K))
    return status;
  TileProblem p = {};
  p.x = args->grad_out->data, p.offsets = args->offsets->data;
  p.result = AnyopDtypeOf(args->grad_out);
  p.rows = static_cast<int>(args->T), p.experts = static_cast<int>(args->E);
  p.capacity = static_cast<int>(args->N);
  if (args->grad_x && args->T && args->K) {
    TileProblem x = p;
    x.weight = args->weight->data, x.out = args->grad_x->data;
    x.N = static_cast<int>(args->K), x.K = static_cast<int>(args->N);
    if (int32_t status = args->E == 0 ? ZeroAll(call, x) : of_x(x)) return status;
  }
  if (args->E == 0 || args->N == 0) return kAnyopOk;
  if (args->grad_weight && args->K) {
    TileProblem weight = p;
    weight.weight = args->x->data, weight.out = args->grad_weight->data;
    weight.N = static_cast<int>(args->K);
    if (int32_t status = of_weight(weight)) return status;
  }
  if (!args->grad_bias) return kAnyopOk;
  p.out = args->grad_bias->data;
  const Launch launch{dim3(static_cast<unsigned>(CeilDiv(args->N, 32)),
                           static_cast<unsigned>(args->E < 65535 ? args->E : 65535)),
                      dim3(256)};
  return launch.Run(call, SumSegments<T>, p);
}

}  // namespace
}  // namespace anyop::cuda
