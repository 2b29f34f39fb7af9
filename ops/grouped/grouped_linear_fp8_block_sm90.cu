// SPDX-License-Identifier: Apache-2.0
// grouped_linear_fp8_block and grouped_linear_fp8_block_masked on Hopper, for float8_e4m3fn and
// results of 16 bits.
#include "../linear/product_sm90.h"
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
  if (p.result == kAnyopFloat32) return DeclineFloat32(call);
  return RunOnHopper<Operand::kE4M3, TileForm::kBlocks>(call, p);
}

}  // namespace

extern "C" int32_t anyop_grouped_linear_fp8_block_cuda_sm90(const GroupedLinearFp8BlockArgs* args,
                                                            AnyopCall* call) {
  return Run(args, call, args->offsets, nullptr);
}
extern "C" int32_t anyop_grouped_linear_fp8_block_masked_cuda_sm90(
    const GroupedLinearFp8BlockMaskedArgs* args, AnyopCall* call) {
  return Run(args, call, nullptr, args->counts);
}
