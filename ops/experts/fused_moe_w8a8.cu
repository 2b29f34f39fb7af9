// SPDX-License-Identifier: Apache-2.0
// fused_moe_w8a8 from Ampere on: see quantized_experts_cuda.h.
#include "anyop/ops/fused_moe_w8a8.h"
#include "quantized_experts_cuda.h"
#include "quantized_products_mma.h"

extern "C" int32_t anyop_fused_moe_w8a8_cuda(const FusedMoeW8a8Args* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return QuantizedExperts<false, CodeProducts, FusedMoeW8a8Args>(args, call, nullptr).Run();
}
