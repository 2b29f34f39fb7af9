// SPDX-License-Identifier: Apache-2.0
// grouped_linear and grouped_linear_masked from Ampere on, in float16 and bfloat16.
#include "../linear/tile_mma.h"
#include "anyop/ops/grouped_linear.h"
#include "anyop/ops/grouped_linear_masked.h"

namespace {

int32_t Run(AnyopCall* call, const AnyopTensor* x, const AnyopTensor* weight,
            const AnyopTensor* bias, const AnyopTensor* out, const AnyopTensor* offsets,
            const AnyopTensor* counts) {
  using namespace anyop::cuda;
  TileProblem p;
  const int32_t status = GroupedProblem(call, x, weight, bias, out, offsets, counts, &p);
  if (status || p.experts == 0) return status;
  return p.result == kAnyopFloat16 ? RunByMma<Operand::kFloat16, TileForm::kPlain>(call, p)
                                   : RunByMma<Operand::kBFloat16, TileForm::kPlain>(call, p);
}

}  // namespace

extern "C" int32_t anyop_grouped_linear_cuda(const GroupedLinearArgs* args, AnyopCall* call) {
  return Run(call, args->x, args->weight, args->bias, args->out, args->offsets, nullptr);
}
extern "C" int32_t anyop_grouped_linear_masked_cuda(const GroupedLinearMaskedArgs* args,
                                                    AnyopCall* call) {
  return Run(call, args->x, args->weight, nullptr, args->out, nullptr, args->counts);
}
