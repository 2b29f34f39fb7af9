// SPDX-License-Identifier: Apache-2.0
// fused_moe and native_fused_moe from Ampere on: see fused_moe_cuda.h.
#include "expert_products_mma.h"
#include "fused_moe_cuda.h"

namespace {

using namespace anyop::cuda;

template <typename Args>
int32_t Run(const Args* args, AnyopCall* call, const Kept& kept) {
  const AnyopDtype dtype = AnyopDtypeOf(args->x);
  if (dtype == kAnyopFloat32) return RunExperts<float, Products>(args, call, kept);
  if (dtype == kAnyopFloat16) return RunExperts<__half, Products>(args, call, kept);
  return RunExperts<__nv_bfloat16, Products>(args, call, kept);
}

}  // namespace

extern "C" int32_t anyop_fused_moe_cuda(const FusedMoeArgs* args, AnyopCall* call) {
  return Run(args, call, {nullptr, nullptr, nullptr});
}
extern "C" int32_t anyop_native_fused_moe_cuda(const NativeFusedMoeArgs* args, AnyopCall* call) {
  return Run(args, call, {args->hidden->data, args->order->data, args->offsets->data});
}
