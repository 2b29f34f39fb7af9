// SPDX-License-Identifier: Apache-2.0
// The products of fused_moe and its gradient on CUDA, whichever kernels compute them
// (expert_products_mma.h, expert_products_sm90.h).
#pragma once

#include <type_traits>

#include "../linear/tile_problem.h"
#include "anyop/cuda/mma.h"

namespace anyop::cuda {
namespace {

enum class WeightForm {
  kRows,      // out[r] = x[r] weight[e]^T: rows K by experts N K, to rows N
  kColumns,   // out[r] = x[r] weight[e]: rows K by experts K N, to rows N
  kGradient,  // out[e] = x^T weight over e's rows: rows capacity by rows N, to experts capacity N
};

template <typename T>
constexpr Operand kOperandOf = std::is_same_v<T, __half> ? Operand::kFloat16 : Operand::kBFloat16;

// Rows by the weights of experts, N K, or K N where they are transposed.
template <typename Products>
int32_t MultiplyRows(AnyopCall* call, const TileProblem& p, bool transposed) {
  return transposed ? Products::template Multiply<WeightForm::kColumns>(call, p)
                    : Products::template Multiply<WeightForm::kRows>(call, p);
}

}  // namespace
}  // namespace anyop::cuda
