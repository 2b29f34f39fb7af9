// SPDX-License-Identifier: Apache-2.0
// softmax and log_softmax over one dimension of a contiguous tensor: rows, or columns side by side.
#ifndef ANYOP_OPS_SOFTMAX_OVER_DIM_H_
#define ANYOP_OPS_SOFTMAX_OVER_DIM_H_

#include "anyop/cpu/math.h"
#include "anyop/cpu/rows.h"

namespace anyop::cpu {

// The tensor as (outer, C, inner) with the sum over C. A unit of work is a row when inner is 1,
// else a tile of up to kBlock columns of one outer index.
struct OverDim {
  const char* x;
  char* out;
  AnyopDtype dtype;
  int item_bytes;
  int64_t C = 1, inner = 1, tiles = 1, units = 0, unit_elements = 0;

  OverDim(const AnyopTensor* in, const AnyopTensor* result, int64_t dim)
      : x(static_cast<const char*>(in->data)),
        out(static_cast<char*>(result->data)),
        dtype(AnyopDtypeOf(in)),
        item_bytes(in->dtype_bits / 8) {
    int64_t outer = 1;
    for (int d = 0; d < in->ndim; ++d) {
      int64_t& size = d < (dim < 0 ? dim + in->ndim : dim)    ? outer
                      : d == (dim < 0 ? dim + in->ndim : dim) ? C
                                                              : inner;
      size *= in->shape[d];
    }
    tiles = (inner + kBlock - 1) / kBlock;
    units = C > 0 ? outer * tiles : 0;
    unit_elements = C * (inner < kBlock ? inner : kBlock);
  }
};

// One row: the greatest, the sum of exponentials, the result. The second and third read the row
// from the cache.
template <bool kLog, typename Wide>
inline void SoftmaxRow(const OverDim* work, int64_t row) {
  const int64_t C = work->C, offset = row * C * work->item_bytes;
  RowReader<Wide> in(work->dtype, work->x + offset, C);
  RowWriter<Wide> to(work->dtype, work->out + offset);
  const Wide most = Greatest(C, in);
  const auto power = [most](Wide v) { return Exp2Negative((v - most) * kLog2E<Wide>); };
  const Wide sum = static_cast<Wide>(Sum(C, power, in));
  if (kLog) {
    const Wide log_sum = Log(sum);
    MapRow(C, [=](Wide v) { return v - most - log_sum; }, to, in);
  } else {
    const Wide scale = 1 / sum;
    MapRow(C, [=](Wide v) { return power(v) * scale; }, to, in);
  }
}

// One tile: C steps over up to kBlock columns, three times. Every column has its own greatest and
// sum.
template <bool kLog, typename Wide>
inline void SoftmaxTile(const OverDim* work, int64_t unit) {
  constexpr int64_t kFlush = 64;  // additions in a row in float32, see FoldBlock
  const int64_t first = unit % work->tiles * kBlock, left = work->inner - first,
                n = left < kBlock ? left : kBlock;
  const int64_t begin = (unit / work->tiles * work->C * work->inner + first) * work->item_bytes;
  const int64_t step = work->inner * work->item_bytes;
  Wide most[kBlock], part[kBlock], sum[kBlock];
  for (int64_t j = 0; j < n; ++j) most[j] = -Bits<Wide>::kInfinity, part[j] = sum[j] = 0;
  for (int64_t c = 0; c < work->C; ++c) {
    RowReader<Wide, kBlock> in(work->dtype, work->x + begin + c * step, n, step);
    Apply(n, [](Wide m, Wide v) { return Max(m, v); }, most, most, in.Read(0, n));
  }
  for (int64_t c = 0; c < work->C; ++c) {
    RowReader<Wide, kBlock> in(work->dtype, work->x + begin + c * step, n, step);
    const auto add = [](Wide s, Wide v, Wide m) {
      return s + Exp2Negative((v - m) * kLog2E<Wide>);
    };
    Apply(n, add, part, part, in.Read(0, n), most);
    if (c % kFlush < kFlush - 1 && c + 1 < work->C) continue;
    Apply(n, [](Wide s, Wide p) { return s + p; }, sum, sum, part);
    for (int64_t j = 0; j < n; ++j) part[j] = 0;
  }
  Apply(n, [](Wide s) { return kLog ? Log(s) : 1 / s; }, sum, sum);
  for (int64_t c = 0; c < work->C; ++c) {
    RowReader<Wide, kBlock> in(work->dtype, work->x + begin + c * step, n, step);
    RowWriter<Wide> to(work->dtype, work->out + begin + c * step, step);
    const auto result = [](Wide v, Wide m, Wide s) {
      return kLog ? v - m - s : Exp2Negative((v - m) * kLog2E<Wide>) * s;
    };
    Apply(n, result, to.Target(0), in.Read(0, n), most, sum);
    to.Write(0, n);
  }
}

template <bool kLog>
inline void SoftmaxUnits(const OverDim* work, int64_t begin, int64_t end) {
  WithFloat(work->dtype, [&](auto wide) {
    using Wide = decltype(wide);
    for (int64_t unit = begin; unit < end; ++unit) {
      work->inner == 1 ? SoftmaxRow<kLog, Wide>(work, unit) : SoftmaxTile<kLog, Wide>(work, unit);
    }
  });
}

}  // namespace anyop::cpu

#endif  // ANYOP_OPS_SOFTMAX_OVER_DIM_H_
