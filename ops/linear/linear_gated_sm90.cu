// SPDX-License-Identifier: Apache-2.0
// linear_gated and native_linear_gated on Hopper: both halves of a result end in one tile.
#include "gated_problem.h"
#include "product_sm90.h"

namespace {

template <typename Args>
int32_t Run(const Args* args, AnyopCall* call, const AnyopTensor* pre) {
  using namespace anyop::cuda;
  TileProblem p;
  if (int32_t status = GatedProblem(call, args, pre, &p)) return status;
  return p.result == kAnyopFloat16 ? RunOnHopper<Operand::kFloat16, TileForm::kGated>(call, p)
                                   : RunOnHopper<Operand::kBFloat16, TileForm::kGated>(call, p);
}

}  // namespace

extern "C" int32_t anyop_linear_gated_cuda_sm90(const LinearGatedArgs* args, AnyopCall* call) {
  return Run(args, call, nullptr);
}
extern "C" int32_t anyop_native_linear_gated_cuda_sm90(const NativeLinearGatedArgs* args,
                                                       AnyopCall* call) {
  return Run(args, call, args->pre);
}
