// SPDX-License-Identifier: Apache-2.0
// grouped_wgrad_accumulate as the tile kernels' problem.
#pragma once

#include "../linear/tile_problem.h"
#include "anyop/ops/grouped_wgrad_accumulate.h"

namespace anyop::cuda {
namespace {

inline int32_t AccumulatedProblem(AnyopCall* call, const GroupedWgradAccumulateArgs* args,
                                  TileProblem* p) {
  if (int32_t status = CheckCounts(call, args->T, args->E * args->N, args->K)) return status;
  *p = {};
  p->x = args->grad_out->data, p->weight = args->x->data, p->out = args->grad_weight->data;
  p->offsets = args->offsets->data;
  p->rows = static_cast<int>(args->T), p->experts = static_cast<int>(args->E);
  p->capacity = static_cast<int>(args->N), p->N = static_cast<int>(args->K);
  p->result = kAnyopFloat32;
  return kAnyopOk;
}

}  // namespace
}  // namespace anyop::cuda
