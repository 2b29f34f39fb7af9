// SPDX-License-Identifier: Apache-2.0
// The logits of linear_cross_entropy on the CPU, some classes of all rows at a time.
#ifndef ANYOP_OPS_LOSS_CLASS_BLOCKS_H_
#define ANYOP_OPS_LOSS_CLASS_BLOCKS_H_

#include <algorithm>

#include "../linear/gemm_blocks.h"
#include "anyop/cpu/math.h"
#include "anyop/cpu/rows.h"

namespace anyop {

// Blocks of classes, multiples of 1,024 but the last: 8 MiB of logits in float32, or 4 KiB for
// each row where that is more. Each row of weight is read once for each pass.
class ClassBlocks {
 public:
  static constexpr int64_t kBytes = 8 << 20, kLeast = 1024;

  // All in rows without gaps; bias may be NULL.
  ClassBlocks(const AnyopTensor* x, const AnyopTensor* weight, const AnyopTensor* bias,
              int64_t rows, int64_t V, int64_t K)
      : dtype(AnyopDtypeOf(x)), rows_(rows), V_(V), K_(K), x_(x), weight_(weight), bias_(bias) {
    const int64_t fit = kBytes / 4 / std::max<int64_t>(rows, 1) / kLeast * kLeast;
    most = std::min(V, std::max(kLeast, fit));
  }

  int64_t bytes() const { return rows_ * most * (dtype == kAnyopFloat64 ? 8 : 4); }

  // Rows of n logits of classes [first, first + n), with bias, in float32 (float64 of float64).
  int32_t Multiply(AnyopCall* call, int64_t first, int64_t n, void* logits) const {
    GemmProblem p = RowsByRows(dtype, rows_, n, K_, x_->data, At(weight_, first * K_));
    p.bias = bias_ ? At(bias_, first) : nullptr;
    p.wide_out = dtype != kAnyopFloat64;
    p.out = logits;
    return Gemm(call, p);
  }

  char* At(const AnyopTensor* tensor, int64_t element) const {
    return static_cast<char*>(tensor->data) + element * SizeOf(dtype);
  }

  AnyopDtype dtype;
  int64_t most;  // classes of a block

 private:
  int64_t rows_, V_, K_;
  const AnyopTensor *x_, *weight_, *bias_;
};

namespace cpu {

// limit * tanh(v / limit), or v where limit is 0.
template <typename Wide>
struct Cap {
  Wide limit, inverse;
  explicit Cap(double softcap)
      : limit(static_cast<Wide>(softcap)), inverse(static_cast<Wide>(1 / softcap)) {}
  Wide operator()(Wide v) const { return limit * Tanh(v * inverse); }
};

}  // namespace cpu
}  // namespace anyop

#endif  // ANYOP_OPS_LOSS_CLASS_BLOCKS_H_
