// SPDX-License-Identifier: Apache-2.0
// Gradients of fused_moe on Hopper, in float16 and bfloat16: see fused_moe_backward_cuda.h.
#include "expert_products_sm90.h"
#include "fused_moe_backward_cuda.h"

extern "C" int32_t anyop_fused_moe_backward_cuda_sm90(const FusedMoeBackwardArgs* args,
                                                      AnyopCall* call) {
  using namespace anyop::cuda;
  return AnyopDtypeOf(args->x) == kAnyopFloat16
             ? RunExpertGradients<__half, HopperProducts>(args, call)
             : RunExpertGradients<__nv_bfloat16, HopperProducts>(args, call);
}
