// SPDX-License-Identifier: Apache-2.0
// linear in float16 and bfloat16 on Hopper by one fixed tile: a row's bits do not depend on the
// others.
#include "anyop/ops/linear.h"
#include "tile_sm90.h"

extern "C" int32_t anyop_linear_cuda_tiles_sm90(const LinearArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  TileProblem p;
  if (int32_t status = PlainProblem(call, args->x, args->weight, args->bias, args->out, args->rows,
                                    args->N, args->K, &p))
    return status;
  return p.result == kAnyopFloat16 ? RunTiles<Operand::kFloat16, TileForm::kPlain>(call, p)
                                   : RunTiles<Operand::kBFloat16, TileForm::kPlain>(call, p);
}
