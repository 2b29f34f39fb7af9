// SPDX-License-Identifier: Apache-2.0
// linear_gated and native_linear_gated as the tile kernels' problem.
#pragma once

#include "anyop/ops/linear_gated.h"
#include "anyop/ops/native_linear_gated.h"
#include "tile_problem.h"

namespace anyop::cuda {
namespace {

template <typename Args>
int32_t GatedProblem(AnyopCall* call, const Args* args, const AnyopTensor* pre, TileProblem* p) {
  if (int32_t status = PlainProblem(call, args->x, args->weight, nullptr, args->out, args->rows,
                                    args->D, args->K, p))
    return status;
  if (pre) p->pre = pre->data;
  return ReadActivation(call, args->activation.data, &p->activation);
}

}  // namespace
}  // namespace anyop::cuda
