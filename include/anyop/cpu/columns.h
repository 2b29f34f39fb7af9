// SPDX-License-Identifier: Apache-2.0
// Sums down columns, such as the gradient of a weight over all rows, with the same bits for any
// number of threads.
#ifndef ANYOP_CPU_COLUMNS_H_
#define ANYOP_CPU_COLUMNS_H_

#include "anyop/cpu/rows.h"

namespace anyop::cpu {

// Sums of parts of the rows: `count` rows of `width` numbers in float32, or in float64 for float64.
struct ColumnParts {
  AnyopDtype dtype;
  int64_t count, width;
  void* data;
};

// Elements [begin, end) of `to`: the parts' sums from number `first` on, added in order, in
// float64.
template <typename Wide>
inline void AddParts(const ColumnParts& parts, int64_t first, int64_t begin, int64_t end,
                     const AnyopTensor* to) {
  RowWriter<Wide> out(AnyopDtypeOf(to), static_cast<char*>(to->data));
  for (int64_t n, i = begin; i < end; i += n) {
    n = end - i < kBlock ? end - i : kBlock;
    const Wide* from = static_cast<const Wide*>(parts.data) + first + i;
    double sums[kBlock];
    for (int64_t j = 0; j < n; ++j) sums[j] = 0;
    for (int64_t part = 0; part < parts.count; ++part) {
#pragma omp simd
      for (int64_t j = 0; j < n; ++j) sums[j] += from[part * parts.width + j];
    }
    NarrowTo(sums, n, out.Target(i));
    out.Write(i, n);
  }
}
[[maybe_unused]] ANYOP_CPU_CLONES __attribute__((noinline)) void AddColumnParts(
    const ColumnParts& parts, int64_t first, int64_t begin, int64_t end, const AnyopTensor* to) {
  WithFloat(parts.dtype,
            [&](auto wide) { AddParts<decltype(wide)>(parts, first, begin, end, to); });
}

// Rows are cut into parts of kPartRows, whatever the number of threads.
class ColumnSums {
 public:
  static constexpr int64_t kPartRows = 32;
  static constexpr int64_t kGroupRows = 4;  // what kernels may handle side by side

  // width: numbers that a row adds to; 0 when no sum is wanted.
  ColumnSums(AnyopCall* call, AnyopDtype dtype, int64_t rows, int64_t width)
      : parts_{dtype, (rows + kPartRows - 1) / kPartRows, width, nullptr} {
    const int64_t bytes = parts_.count * width * (dtype == kAnyopFloat64 ? 8 : 4);
    if (bytes > 0) parts_.data = call->workspace(call, bytes);
    has_memory_ = bytes == 0 || parts_.data;
  }

  bool has_memory() const { return has_memory_; }

  // The numbers that a row adds to: zeros at the first row of its part.
  template <typename Wide>
  Wide* At(int64_t row) const {
    Wide* sums = static_cast<Wide*>(parts_.data) + row / kPartRows * parts_.width;
    if (row % kPartRows == 0) {
      for (int64_t i = 0; i < parts_.width; ++i) sums[i] = 0;
    }
    return sums;
  }

  // Runs `run(args, begin, end)` over rows of D elements, each part on one thread; without sums,
  // each group.
  template <typename Args, typename Run>
  void RunParts(AnyopCall* call, const Args* args, int64_t rows, int64_t D, Run run) const {
    if (D == 0) return;
    const int64_t step = parts_.width > 0 ? kPartRows : kGroupRows;
    ParallelFor(call, (rows + step - 1) / step, kGrain / (D * step) + 1,
                [&](int64_t begin, int64_t end) {
                  run(args, begin * step, end * step < rows ? end * step : rows);
                });
  }

  // A tensor of one row, of any floating-point type: the sums from number `first` on.
  void Write(AnyopCall* call, int64_t first, const AnyopTensor* to) const {
    ParallelFor(call, to->shape[to->ndim - 1], kGrain / (parts_.count + 1) + 1,
                [&](int64_t begin, int64_t end) { AddColumnParts(parts_, first, begin, end, to); });
  }

 private:
  ColumnParts parts_;
  bool has_memory_;
};

}  // namespace anyop::cpu

#endif  // ANYOP_CPU_COLUMNS_H_
