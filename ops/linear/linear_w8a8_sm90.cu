// SPDX-License-Identifier: Apache-2.0
// linear_w8a8 on Hopper. Its tensor cores add products of 8-bit floats with about 14 bits, which is
// enough for results of 16.
#include "product_sm90.h"
#include "scaled_problem.h"

extern "C" int32_t anyop_linear_w8a8_cuda_sm90(const LinearW8a8Args* args, AnyopCall* call) {
  using namespace anyop::cuda;
  TileProblem p;
  if (int32_t status = ScaledProblem(call, args, &p)) return status;
  const AnyopDtype type = AnyopDtypeOf(args->x);
  if (type == kAnyopInt8) return RunOnHopper<Operand::kInt8, TileForm::kPlain>(call, p);
  if (p.result == kAnyopFloat32) return DeclineFloat32(call);
  return type == kAnyopFloat8E4M3FN ? RunOnHopper<Operand::kE4M3, TileForm::kPlain>(call, p)
                                    : RunOnHopper<Operand::kE5M2, TileForm::kPlain>(call, p);
}
