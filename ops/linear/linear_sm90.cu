// SPDX-License-Identifier: Apache-2.0
// linear of at most 16 rows in float16 and bfloat16 on Hopper; others are cuBLASLt's by default.
// Choices 1 to 4: 1, 2, 4, 8 blocks a cluster; 0 decides, as -1.
#include "anyop/ops/linear.h"
#include "thin_sm90.h"

extern "C" int32_t anyop_linear_cuda_sm90(const LinearArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  TileProblem p;
  if (int32_t status = PlainProblem(call, args->x, args->weight, args->bias, args->out, args->rows,
                                    args->N, args->K, &p))
    return status;
  return p.result == kAnyopFloat16 ? RunThin<Operand::kFloat16, TileForm::kPlain, 16>(call, p)
                                   : RunThin<Operand::kBFloat16, TileForm::kPlain, 16>(call, p);
}
