// SPDX-License-Identifier: Apache-2.0
// linear_fp8_block on Hopper, for float8_e4m3fn and results of 16 bits: within 128 terms its tensor
// cores add with about 14 bits.
#include "product_sm90.h"
#include "scaled_problem.h"

extern "C" int32_t anyop_linear_fp8_block_cuda_sm90(const LinearFp8BlockArgs* args,
                                                    AnyopCall* call) {
  using namespace anyop::cuda;
  TileProblem p;
  if (int32_t status = ScaledProblem(call, args, &p)) return status;
  if (p.result == kAnyopFloat32) return DeclineFloat32(call);
  return RunOnHopper<Operand::kE4M3, TileForm::kBlocks>(call, p);
}
