// SPDX-License-Identifier: Apache-2.0
// The products of quantized_experts_cuda.h on Hopper: the kernels of grouped_linear_fp8_block and
// of linear_w8a8, whose sums stay float32.
#pragma once

#include "../linear/product_sm90.h"

namespace anyop::cuda {
namespace {

struct HopperCodeProducts {
  static constexpr bool kMakesCodes = true;

  static int32_t Accept(AnyopCall* call, const AnyopTensor* w13, const AnyopTensor* w2,
                        AnyopDtype result) {
    if (result == kAnyopFloat32 && AnyopDtypeOf(w13) != kAnyopInt8) return DeclineFloat32(call);
    const int64_t H = w13->shape[2], I = w2->shape[2];
    const bool fits =
        H && I && H % 16 == 0 && I % 16 == 0 && IsAligned(w13->data, 16) && IsAligned(w2->data, 16);
    return fits ? kAnyopOk : DeclineTma(call);
  }
  template <Operand kType, TileForm kForm>
  static int32_t Multiply(AnyopCall* call, const TileProblem& p) {
    constexpr TileForm kThin = kForm == TileForm::kBlocks ? kForm : TileForm::kPlain;
    return RunOnHopper<kType, kForm, kThin, true>(call, p);
  }
  static bool MakesCodes(AnyopCall* call, const TileProblem& p) {
    return AnyopChoice(call) < 0 && p.N % 128 == 0 && HasOwnBlocks(call, p, 128);
  }
  static int32_t MultiplyToCodes(AnyopCall* call, const TileProblem& p) {
    return RunBlockSegments<BlockEnd::kCodes>(call, p);
  }
};

}  // namespace
}  // namespace anyop::cuda
