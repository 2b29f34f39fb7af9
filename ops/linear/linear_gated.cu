// SPDX-License-Identifier: Apache-2.0
// linear_gated and native_linear_gated from Ampere on: both halves of a result end in one tile.
#include "gated_problem.h"
#include "tile_mma.h"

namespace {

template <typename Args>
int32_t Run(const Args* args, AnyopCall* call, const AnyopTensor* pre) {
  using namespace anyop::cuda;
  TileProblem p;
  if (int32_t status = GatedProblem(call, args, pre, &p)) return status;
  return p.result == kAnyopFloat16 ? RunByMma<Operand::kFloat16, TileForm::kGated>(call, p)
                                   : RunByMma<Operand::kBFloat16, TileForm::kGated>(call, p);
}

}  // namespace

extern "C" int32_t anyop_linear_gated_cuda(const LinearGatedArgs* args, AnyopCall* call) {
  return Run(args, call, nullptr);
}
extern "C" int32_t anyop_native_linear_gated_cuda(const NativeLinearGatedArgs* args,
                                                  AnyopCall* call) {
  return Run(args, call, args->pre);
}
