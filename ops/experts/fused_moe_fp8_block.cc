// SPDX-License-Identifier: Apache-2.0
// fused_moe_fp8_block on the CPU: see quantized_experts.h; products are those of linear_fp8_block.
#include "anyop/ops/fused_moe_fp8_block.h"

#include "../grouped/segments.h"
#include "../linear/filled_product.h"
#include "../linear/scaled_blocks.h"
#include "../linear/scaled_sums.h"
#include "quantized_experts.h"

namespace anyop {
namespace {

// Both operands times their scales, in float32.
class BlockProduct {
 public:
  static constexpr int64_t kGroup = cpu::kScaleBlock;

  BlockProduct(AnyopCall* call, const AnyopTensor*, int64_t most, int64_t N, int64_t K)
      : call_(call), N_(N), K_(K), filled_(call, kAnyopFloat32, most, N, K) {}

  bool has_memory() const { return filled_.has_memory(); }

  int32_t Run(int64_t M, const char* rows, const float* scales, const AnyopTensor* weight,
              const AnyopTensor* weight_scale, int64_t e, float* to) {
    const int64_t down = weight_scale->shape[1], across = weight_scale->shape[2];
    const auto* of_expert = static_cast<const float*>(weight_scale->data) + e * down * across;
    const AnyopDtype dtype = AnyopDtypeOf(weight);
    const cpu::ScaledRows x = {dtype, K_, 1, rows, scales, across, 1};
    const cpu::ScaledRows w = {
        dtype, K_, cpu::kScaleBlock, ElementOf(weight, e * N_ * K_), of_expert, across, 1};
    const cpu::Matrix out(weight_scale, to, M, N_);
    return filled_.Run(M, x, w,
                       cpu::StoreScaled(call_, {&out.tensor, nullptr, nullptr, nullptr, N_}));
  }

 private:
  AnyopCall* call_;
  int64_t N_, K_;
  FilledProduct filled_;
};

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_fused_moe_fp8_block_cpu(const FusedMoeFp8BlockArgs* args,
                                                 AnyopCall* call) {
  using namespace anyop;
  return QuantizedExperts<FusedMoeFp8BlockArgs, BlockProduct>(args, call, args->x_scale).Run();
}
