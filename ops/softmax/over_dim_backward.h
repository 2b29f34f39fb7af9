// SPDX-License-Identifier: Apache-2.0
// Gradients of softmax and log_softmax over one dimension, from their results; see over_dim.h.
#ifndef ANYOP_OPS_SOFTMAX_OVER_DIM_BACKWARD_H_
#define ANYOP_OPS_SOFTMAX_OVER_DIM_BACKWARD_H_

#include "over_dim.h"

namespace anyop::cpu {

// x is the result of softmax, out its gradient's; all three have one shape.
struct OverDimBackward : OverDim {
  const char* grad;
  OverDimBackward(const AnyopTensor* grad_out, const AnyopTensor* out, const AnyopTensor* grad_x,
                  int64_t dim)
      : OverDim(out, grad_x, dim), grad(static_cast<const char*>(grad_out->data)) {}
};

// What is summed over the dimension, and the gradient from that sum.
template <bool kLog>
struct SoftmaxGradient {
  template <typename Wide>
  static Wide Term(Wide g, Wide y) {
    return kLog ? g : g * y;
  }
  template <typename Wide>
  static Wide Result(Wide g, Wide y, Wide sum) {
    if constexpr (kLog) return g - Exp2(y * kLog2E<Wide>) * sum;
    return (g - sum) * y;
  }
};

// A row of softmax in bfloat16, which is widened in registers: there is too little to compute for
// converted blocks. 64 partial sums; those of kBlock elements are added in float64.
inline void SoftmaxGradientRowBF16(int64_t n, const bfloat16* g, const bfloat16* y, bfloat16* to) {
  constexpr int kParts = 64;
  double sum = 0;
  ForBlocks(n, [&](int64_t begin, int64_t size) {
    float parts[kParts] = {};
    int64_t i = begin;
    for (; i + kParts <= begin + size; i += kParts) {
#pragma omp simd
      for (int j = 0; j < kParts; ++j) parts[j] += Load<float>(g[i + j]) * Load<float>(y[i + j]);
    }
    for (int j = 0; i < begin + size; ++i, ++j) parts[j] += Load<float>(g[i]) * Load<float>(y[i]);
    for (int j = 0; j < kParts; ++j) sum += parts[j];
  });
  const float all = static_cast<float>(sum);
  Apply(n, [all](const auto& g, const auto& y) { return (g - all) * y; }, to, g, y);
}

template <bool kLog, typename Wide>
inline void SoftmaxGradientRow(const OverDimBackward* work, int64_t row) {
  const int64_t C = work->C, offset = row * C * work->item_bytes;
  if (!kLog && work->dtype == kAnyopBFloat16) {
    const auto* grad = reinterpret_cast<const bfloat16*>(work->grad + offset);
    const auto* out = reinterpret_cast<const bfloat16*>(work->x + offset);
    return SoftmaxGradientRowBF16(C, grad, out, reinterpret_cast<bfloat16*>(work->out + offset));
  }
  RowReader<Wide> y(work->dtype, work->x + offset, C), g(work->dtype, work->grad + offset, C);
  RowWriter<Wide> to(work->dtype, work->out + offset);
  using Gradient = SoftmaxGradient<kLog>;
  const Wide sum =
      static_cast<Wide>(Sum(C, [](Wide g, Wide y) { return Gradient::Term(g, y); }, g, y));
  MapRow(C, [sum](Wide g, Wide y) { return Gradient::Result(g, y, sum); }, to, g, y);
}

// One tile: C steps over up to kBlock columns, twice.
template <bool kLog, typename Wide>
inline void SoftmaxGradientTile(const OverDimBackward* work, int64_t unit) {
  constexpr int64_t kFlush = 64;  // additions in a row in float32, see FoldBlock
  using Gradient = SoftmaxGradient<kLog>;
  const int64_t first = unit % work->tiles * kBlock, left = work->inner - first,
                n = left < kBlock ? left : kBlock;
  const int64_t begin = (unit / work->tiles * work->C * work->inner + first) * work->item_bytes;
  const int64_t step = work->inner * work->item_bytes;
  Wide part[kBlock], sum[kBlock];
  for (int64_t j = 0; j < n; ++j) part[j] = sum[j] = 0;
  for (int64_t c = 0; c < work->C; ++c) {
    RowReader<Wide> y(work->dtype, work->x + begin + c * step, n),
        g(work->dtype, work->grad + begin + c * step, n);
    const auto add = [](Wide p, Wide g, Wide y) { return p + Gradient::Term(g, y); };
    Apply(n, add, part, part, g.Read(0, n), y.Read(0, n));
    if (c % kFlush < kFlush - 1 && c + 1 < work->C) continue;
    Apply(n, [](Wide s, Wide p) { return s + p; }, sum, sum, part);
    for (int64_t j = 0; j < n; ++j) part[j] = 0;
  }
  for (int64_t c = 0; c < work->C; ++c) {
    RowReader<Wide> y(work->dtype, work->x + begin + c * step, n),
        g(work->dtype, work->grad + begin + c * step, n);
    RowWriter<Wide> to(work->dtype, work->out + begin + c * step);
    const auto result = [](Wide g, Wide y, Wide s) { return Gradient::Result(g, y, s); };
    Apply(n, result, to.Target(0), g.Read(0, n), y.Read(0, n), sum);
    to.Write(0, n);
  }
}

template <bool kLog>
inline void SoftmaxGradientUnits(const OverDimBackward* work, int64_t begin, int64_t end) {
  WithFloat(work->dtype, [&](auto wide) {
    using Wide = decltype(wide);
    for (int64_t unit = begin; unit < end; ++unit) {
      work->inner == 1 ? SoftmaxGradientRow<kLog, Wide>(work, unit)
                       : SoftmaxGradientTile<kLog, Wide>(work, unit);
    }
  });
}

}  // namespace anyop::cpu

#endif  // ANYOP_OPS_SOFTMAX_OVER_DIM_BACKWARD_H_
