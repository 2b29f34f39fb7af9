// SPDX-License-Identifier: Apache-2.0
// The products of quantized_experts_cuda.h from Ampere on.
#pragma once

#include "../linear/tile_mma.h"

namespace anyop::cuda {
namespace {

struct CodeProducts {
  static constexpr bool kMakesCodes = false;

  static int32_t Accept(AnyopCall*, const AnyopTensor*, const AnyopTensor*, AnyopDtype) {
    return kAnyopOk;
  }
  template <Operand kType, TileForm kForm>
  static int32_t Multiply(AnyopCall* call, const TileProblem& p) {
    return RunByMma<kType, kForm == TileForm::kBlocks ? kForm : TileForm::kPlain>(call, p);
  }
};

}  // namespace
}  // namespace anyop::cuda
