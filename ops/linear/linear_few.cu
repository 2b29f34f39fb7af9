// SPDX-License-Identifier: Apache-2.0
// linear and linear_gated of at most eight rows from Ampere on.
#include "anyop/ops/linear.h"
#include "few_cuda.h"
#include "gated_problem.h"

extern "C" int32_t anyop_linear_cuda_few(const LinearArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  TileProblem p;
  if (int32_t status = PlainProblem(call, args->x, args->weight, args->bias, args->out, args->rows,
                                    args->N, args->K, &p))
    return status;
  return RunFew<false>(call, p);
}
extern "C" int32_t anyop_linear_gated_cuda_few(const LinearGatedArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  TileProblem p;
  if (int32_t status = GatedProblem(call, args, nullptr, &p)) return status;
  return RunFew<true>(call, p);
}
