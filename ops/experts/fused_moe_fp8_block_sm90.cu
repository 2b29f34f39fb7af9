// SPDX-License-Identifier: Apache-2.0
// fused_moe_fp8_block on Hopper: see quantized_experts_cuda.h.
#include "anyop/ops/fused_moe_fp8_block.h"
#include "quantized_experts_cuda.h"
#include "quantized_products_sm90.h"

extern "C" int32_t anyop_fused_moe_fp8_block_cuda_sm90(const FusedMoeFp8BlockArgs* args,
                                                       AnyopCall* call) {
  using namespace anyop::cuda;
  return QuantizedExperts<true, HopperCodeProducts, FusedMoeFp8BlockArgs>(args, call, args->x_scale)
      .Run();
}
