// SPDX-License-Identifier: Apache-2.0
// linear_w8a8 and linear_fp8_block as the tile kernels' problems.
#pragma once

#include "anyop/ops/linear_fp8_block.h"
#include "anyop/ops/linear_w8a8.h"
#include "tile_problem.h"

namespace anyop::cuda {
namespace {

inline int32_t ScaledProblem(AnyopCall* call, const LinearW8a8Args* args, TileProblem* p) {
  if (int32_t status = PlainProblem(call, args->x, args->weight, args->bias, args->out, args->M,
                                    args->N, args->K, p))
    return status;
  const auto stride = [](const AnyopTensor* scale) { return scale->ndim ? scale->strides[0] : 0; };
  p->row_scale = static_cast<const float*>(args->x_scale->data);
  p->row_scale_stride = stride(args->x_scale);
  p->column_scale = static_cast<const float*>(args->weight_scale->data);
  p->column_scale_stride = stride(args->weight_scale);
  return kAnyopOk;
}

inline int32_t ScaledProblem(AnyopCall* call, const LinearFp8BlockArgs* args, TileProblem* p) {
  if (int32_t status = PlainProblem(call, args->x, args->weight, nullptr, args->out, args->M,
                                    args->N, args->K, p))
    return status;
  SetBlockScales(p, args->x_scale, args->weight_scale);
  return kAnyopOk;
}

}  // namespace
}  // namespace anyop::cuda
