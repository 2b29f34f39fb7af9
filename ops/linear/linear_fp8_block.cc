// SPDX-License-Identifier: Apache-2.0
// linear_fp8_block on the CPU: both operands times their scales, in float32, block by block; sums
// in float32, rounded once.
#include "anyop/ops/linear_fp8_block.h"

#include "filled_product.h"
#include "scaled_blocks.h"
#include "scaled_sums.h"

extern "C" int32_t anyop_linear_fp8_block_cpu(const LinearFp8BlockArgs* args, AnyopCall* call) {
  using namespace anyop;
  FilledProduct product(call, kAnyopFloat32, args->M, args->N, args->K);
  if (!product.has_memory())
    return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  const auto rows_of = [&](const AnyopTensor* tensor, const AnyopTensor* scale, int64_t rows) {
    return cpu::ScaledRows{AnyopDtypeOf(tensor),
                           args->K,
                           rows,
                           static_cast<const char*>(tensor->data),
                           static_cast<const float*>(scale->data),
                           scale->strides[0],
                           scale->strides[1]};
  };
  return product.Run(args->M, rows_of(args->x, args->x_scale, 1),
                     rows_of(args->weight, args->weight_scale, cpu::kScaleBlock),
                     cpu::StoreScaled(call, {args->out, nullptr, nullptr, nullptr, args->N}));
}
