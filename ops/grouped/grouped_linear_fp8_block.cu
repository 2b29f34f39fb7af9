// SPDX-License-Identifier: Apache-2.0
// grouped_linear_fp8_block and grouped_linear_fp8_block_masked from Ampere on.
#include "../linear/tile_mma.h"
#include "anyop/ops/grouped_linear_fp8_block.h"
#include "anyop/ops/grouped_linear_fp8_block_masked.h"

namespace {

template <typename Args>
int32_t Run(const Args* args, AnyopCall* call, const AnyopTensor* offsets,
            const AnyopTensor* counts) {
  using namespace anyop::cuda;
  TileProblem p;
  const int32_t status =
      GroupedProblem(call, args->x, args->weight, nullptr, args->out, offsets, counts, &p);
  if (status || p.experts == 0) return status;
  SetBlockScales(&p, args->x_scale, args->weight_scale);
  return AnyopDtypeOf(args->x) == kAnyopFloat8E4M3FN
             ? RunByMma<Operand::kE4M3, TileForm::kBlocks>(call, p)
             : RunByMma<Operand::kE5M2, TileForm::kBlocks>(call, p);
}

}  // namespace

extern "C" int32_t anyop_grouped_linear_fp8_block_cuda(const GroupedLinearFp8BlockArgs* args,
                                                       AnyopCall* call) {
  return Run(args, call, args->offsets, nullptr);
}
extern "C" int32_t anyop_grouped_linear_fp8_block_masked_cuda(
    const GroupedLinearFp8BlockMaskedArgs* args, AnyopCall* call) {
  return Run(args, call, nullptr, args->counts);
}
