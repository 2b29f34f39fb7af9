// SPDX-License-Identifier: Apache-2.0
// Products of what is not stored as it is multiplied, such as 8 and 4 bits: blocks of rows of both
// operands are written to scratch memory in float32 or 16 bits, and multiplied there by gemm.cc.
#pragma once

#include <algorithm>

#include "convert.h"
#include "gemm.h"

namespace anyop {

// out (M, N) = x (M, K) by the transpose of weight (N, K).
class FilledProduct {
 public:
  // dtype: what is multiplied; sums are float32. most_rows: no product has a greater M.
  FilledProduct(AnyopCall* call, AnyopDtype dtype, int64_t most_rows, int64_t N, int64_t K)
      : call_(call), dtype_(dtype), N_(N), K_(K), item_(SizeOf(dtype)) {
    const int64_t least = 256, rows = kNumbers / std::max<int64_t>(K, 1);
    tall_ = std::max<int64_t>(1, std::min(most_rows, std::max(least, rows)));
    wide_ = std::max<int64_t>(1, std::min(N, std::max(least, rows)));
    x_bytes_ = RoundedUp(tall_ * K * item_);
    weight_bytes_ = RoundedUp(wide_ * K * item_);
    const int64_t bytes = x_bytes_ + weight_bytes_ + tall_ * wide_ * 4;
    memory_ = static_cast<char*>(call->workspace(call, bytes));
  }

  bool has_memory() const { return memory_; }

  // fill_x(row, to) and fill_weight(row, to) write a row of K elements of dtype; store(m, rows, n,
  // cols, sums) takes the sums of a block, rows of `cols`. The fills are called by many threads,
  // store by the calling one.
  template <typename FillX, typename FillWeight, typename Store>
  int32_t Run(int64_t M, const FillX& fill_x, const FillWeight& fill_weight, const Store& store) {
    GemmProblem p = {};
    p.dtype = dtype_;
    p.K = K_;
    p.a = {memory_, K_, 1, nullptr, nullptr};
    p.b = {memory_ + x_bytes_, 1, K_, nullptr, nullptr};
    p.out = memory_ + x_bytes_ + weight_bytes_;
    p.fixed_tiles = true;
    p.wide_out = true;
    for (int64_t n = 0; n < N_ && M > 0; n += wide_) {
      p.N = std::min(wide_, N_ - n);
      Fill(memory_ + x_bytes_, n, p.N, fill_weight);
      for (int64_t m = 0; m < M; m += tall_) {
        p.M = std::min(tall_, M - m);
        if (n == 0 || M > tall_) Fill(memory_, m, p.M, fill_x);
        if (const int32_t status = Gemm(call_, p)) return status;
        store(m, p.M, n, p.N, static_cast<const float*>(p.out));
      }
    }
    return kAnyopOk;
  }

 private:
  static constexpr int64_t kNumbers = 4 << 20;

  static int64_t RoundedUp(int64_t bytes) { return (bytes + 63) / 64 * 64; }

  template <typename FillRow>
  void Fill(char* to, int64_t first, int64_t rows, const FillRow& fill) const {
    ParallelFor(call_, rows, 65536 / (K_ + 1) + 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        fill(first + row, static_cast<void*>(to + row * K_ * item_));
    });
  }

  AnyopCall* call_;
  AnyopDtype dtype_;
  int64_t N_, K_, item_, tall_, wide_, x_bytes_, weight_bytes_;
  char* memory_;
};

}  // namespace anyop
