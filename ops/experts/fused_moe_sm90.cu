// SPDX-License-Identifier: Apache-2.0
// fused_moe and native_fused_moe on Hopper, in float16 and bfloat16: see fused_moe_cuda.h.
#include "expert_products_sm90.h"
#include "fused_moe_cuda.h"

namespace {

using namespace anyop::cuda;

template <typename Args>
int32_t Run(const Args* args, AnyopCall* call, const Kept& kept) {
  return AnyopDtypeOf(args->x) == kAnyopFloat16
             ? RunExperts<__half, HopperProducts>(args, call, kept)
             : RunExperts<__nv_bfloat16, HopperProducts>(args, call, kept);
}

}  // namespace

extern "C" int32_t anyop_fused_moe_cuda_sm90(const FusedMoeArgs* args, AnyopCall* call) {
  return Run(args, call, {nullptr, nullptr, nullptr});
}
extern "C" int32_t anyop_native_fused_moe_cuda_sm90(const NativeFusedMoeArgs* args,
                                                    AnyopCall* call) {
  return Run(args, call, {args->hidden->data, args->order->data, args->offsets->data});
}
