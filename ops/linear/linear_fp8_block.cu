// SPDX-License-Identifier: Apache-2.0
// linear_fp8_block from Ampere on: 8-bit floats are multiplied as float16, which holds them
// exactly.
#include "scaled_problem.h"
#include "tile_mma.h"

extern "C" int32_t anyop_linear_fp8_block_cuda(const LinearFp8BlockArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  TileProblem p;
  if (int32_t status = ScaledProblem(call, args, &p)) return status;
  return AnyopDtypeOf(args->x) == kAnyopFloat8E4M3FN
             ? RunByMma<Operand::kE4M3, TileForm::kBlocks>(call, p)
             : RunByMma<Operand::kE5M2, TileForm::kBlocks>(call, p);
}
