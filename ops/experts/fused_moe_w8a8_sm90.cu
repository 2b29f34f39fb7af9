// SPDX-License-Identifier: Apache-2.0
// fused_moe_w8a8 on Hopper: see quantized_experts_cuda.h.
#include "anyop/ops/fused_moe_w8a8.h"
#include "quantized_experts_cuda.h"
#include "quantized_products_sm90.h"

extern "C" int32_t anyop_fused_moe_w8a8_cuda_sm90(const FusedMoeW8a8Args* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return QuantizedExperts<false, HopperCodeProducts, FusedMoeW8a8Args>(args, call, nullptr).Run();
}
