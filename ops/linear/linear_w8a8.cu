// SPDX-License-Identifier: Apache-2.0
// linear_w8a8 from Ampere on: int8 by its own products, 8-bit floats as float16.
#include "scaled_problem.h"
#include "tile_mma.h"

extern "C" int32_t anyop_linear_w8a8_cuda(const LinearW8a8Args* args, AnyopCall* call) {
  using namespace anyop::cuda;
  TileProblem p;
  if (int32_t status = ScaledProblem(call, args, &p)) return status;
  switch (AnyopDtypeOf(args->x)) {
    case kAnyopInt8:
      return RunByMma<Operand::kInt8, TileForm::kPlain>(call, p);
    case kAnyopFloat8E4M3FN:
      return RunByMma<Operand::kE4M3, TileForm::kPlain>(call, p);
    default:
      return RunByMma<Operand::kE5M2, TileForm::kPlain>(call, p);
  }
}
