// SPDX-License-Identifier: Apache-2.0
// Gradients of softmax and log_softmax over one dimension, from their results; see over_dim.h.
#ifndef ANYOP_OPS_SOFTMAX_OVER_DIM_BACKWARD_H_
#define ANYOP_OPS_SOFTMAX_OVER_DIM_BACKWARD_H_

#include "over_dim.h"
#include "scaled_row.h"

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

template <bool kLog, typename Wide>
inline void SoftmaxGradientRow(const OverDimBackward* work, int64_t row) {
  const int64_t C = work->C, offset = row * C * work->item_bytes;
  if (!kLog) {
    return ScaledSoftmaxGradientRow<Wide>(C, C, 1, work->dtype, work->grad + offset,
                                          work->x + offset, work->out + offset);
  }
  RowReader<Wide> y(work->dtype, work->x + offset, C), g(work->dtype, work->grad + offset, C);
  RowWriter<Wide> to(work->dtype, work->out + offset);
  using Gradient = SoftmaxGradient<true>;
  const Wide sum = static_cast<Wide>(Sum(C, [](Wide g) { return g; }, g));
  MapRow(C, [sum](Wide g, Wide y) { return Gradient::Result(g, y, sum); }, to, g, y);
}

// One tile: C steps over up to kBlock columns, twice. T: the elements' type.
template <bool kLog, typename T>
inline void SoftmaxGradientTile(const OverDimBackward* work, int64_t unit) {
  constexpr int64_t kFlush = 64;  // additions in a row in float32, see FoldBlock
  using Gradient = SoftmaxGradient<kLog>;
  using Wide = typename WideOf<T>::Type;
  const int64_t first = unit % work->tiles * kBlock, left = work->inner - first,
                n = left < kBlock ? left : kBlock;
  const int64_t begin = unit / work->tiles * work->C * work->inner + first;
  const auto map = [n](auto f, auto* out, const auto*... in) {
    if constexpr (sizeof(T) == 2) {
      ApplyInRegisters(n, f, out, in...);
    } else {
      Apply(n, f, out, in...);
    }
  };
  Wide part[kBlock], sum[kBlock];
  for (int64_t j = 0; j < n; ++j) part[j] = sum[j] = 0;
  for (int64_t c = 0; c < work->C; ++c) {
    const int64_t at = begin + c * work->inner;
    const T *g = reinterpret_cast<const T*>(work->grad) + at,
            *y = reinterpret_cast<const T*>(work->x) + at;
    const auto add = [](const auto& p, const auto& g, const auto& y) {
      return p + Gradient::Term(g, y);
    };
    map(add, part, part, g, y);
    if (c % kFlush < kFlush - 1 && c + 1 < work->C) continue;
    Apply(n, [](Wide s, Wide p) { return s + p; }, sum, sum, part);
    for (int64_t j = 0; j < n; ++j) part[j] = 0;
  }
  for (int64_t c = 0; c < work->C; ++c) {
    const int64_t at = begin + c * work->inner;
    const T *g = reinterpret_cast<const T*>(work->grad) + at,
            *y = reinterpret_cast<const T*>(work->x) + at;
    T* to = reinterpret_cast<T*>(work->out) + at;
    const auto result = [](const auto& g, const auto& y, const auto& s) {
      return Gradient::Result(g, y, s);
    };
    if constexpr (!kLog) {
      map(result, to, g, y, sum);
    } else {
      const char *row_g = reinterpret_cast<const char*>(g),
                 *row_y = reinterpret_cast<const char*>(y);
      RowReader<Wide> grad(work->dtype, row_g, n), out(work->dtype, row_y, n);
      RowWriter<Wide> writer(work->dtype, reinterpret_cast<char*>(to));
      Apply(n, result, writer.Target(0), grad.Read(0, n), out.Read(0, n), sum);
      writer.Write(0, n);
    }
  }
}

template <bool kLog>
inline void SoftmaxGradientUnits(const OverDimBackward* work, int64_t begin, int64_t end) {
  const auto tiles = [&](auto zero) {
    for (int64_t unit = begin; unit < end; ++unit)
      SoftmaxGradientTile<kLog, decltype(zero)>(work, unit);
  };
  if (work->inner > 1 && work->dtype == kAnyopFloat16) return tiles(float16());
  if (work->inner > 1 && work->dtype == kAnyopBFloat16) return tiles(bfloat16());
  WithFloat(work->dtype, [&](auto wide) {
    using Wide = decltype(wide);
    if (work->inner > 1) return tiles(Wide());
    for (int64_t unit = begin; unit < end; ++unit) SoftmaxGradientRow<kLog, Wide>(work, unit);
  });
}

}  // namespace anyop::cpu

#endif  // ANYOP_OPS_SOFTMAX_OVER_DIM_BACKWARD_H_
