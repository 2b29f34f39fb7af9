// SPDX-License-Identifier: Apache-2.0
// The products of fused_moe and its gradient on Hopper: the kernels of grouped_linear, of its
// gradient and of linear_gated.
#pragma once

#include "../grouped/grouped_backward_sm90.h"
#include "../linear/product_sm90.h"
#include "weight_form.h"

namespace anyop::cuda {
namespace {

// Of elements T, of 16 bits.
template <typename T>
struct HopperProducts {
  using Result = T;  // of rows that are added up for tokens: half the bytes of float32
  static constexpr Operand kType = kOperandOf<T>;

  // Weights of H and I features, as TMA reads them.
  static int32_t Accept(AnyopCall* call, const void* w13, const void* w2, int64_t H, int64_t I) {
    const bool fits = H && I && H % 8 == 0 && I % 8 == 0 && IsAligned(w13, 16) && IsAligned(w2, 16);
    return fits ? kAnyopOk : DeclineTma(call);
  }

  // p as kForm says; results of T or float32. Rows of no segment become 0.
  template <WeightForm kForm>
  static int32_t Multiply(AnyopCall* call, const TileProblem& p) {
    if constexpr (kForm == WeightForm::kRows)
      return RunOnHopper<kType, TileForm::kSegments, TileForm::kPlain, true>(call, p);
    else if constexpr (kForm == WeightForm::kColumns)
      return RunGradientOfRows<kType, true>(call, p);
    else
      return RunGradient<kType, true>(call, p);
  }

  // Whether MultiplyGated takes the rows of p.order itself.
  static bool Gathers(AnyopCall* call, const TileProblem& p) {
    return GathersOnHopper<kType>(call, p);
  }
  static int32_t MultiplyGated(AnyopCall* call, const TileProblem& p) {
    return RunOnHopper<kType, TileForm::kGatedSegments, TileForm::kGated>(call, p);
  }
};

}  // namespace
}  // namespace anyop::cuda
