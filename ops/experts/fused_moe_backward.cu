// SPDX-License-Identifier: Apache-2.0
// Gradients of fused_moe from Ampere on: see fused_moe_backward_cuda.h.
#include "expert_products_mma.h"
#include "fused_moe_backward_cuda.h"

extern "C" int32_t anyop_fused_moe_backward_cuda(const FusedMoeBackwardArgs* args,
                                                 AnyopCall* call) {
  using namespace anyop::cuda;
  const AnyopDtype dtype = AnyopDtypeOf(args->x);
  if (dtype == kAnyopFloat32) return RunExpertGradients<float, Products>(args, call);
  if (dtype == kAnyopFloat16) return RunExpertGradients<__half, Products>(args, call);
  return RunExpertGradients<__nv_bfloat16, Products>(args, call);
}
