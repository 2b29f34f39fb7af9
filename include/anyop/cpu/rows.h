// SPDX-License-Identifier: Apache-2.0
// The row scheme of CPU kernels: fold a row to a number, then map the row; a row is read from
// memory once.
#ifndef ANYOP_CPU_ROWS_H_
#define ANYOP_CPU_ROWS_H_

#include "anyop/cpu/convert.h"

namespace anyop::cpu {

// Asks for memory that is read (or written) soon, into the second cache. Processors do so
// themselves within a page of 4 KiB, and not for rows that begin anew.
template <bool kWritten = false>
inline void Fetch(const char* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(from + i, kWritten, 2);
}

// The rows of a tensor whose last dimension is contiguous (layout "rows"); what lies before it has
// any strides.
class Rows {
 public:
  // inner: trailing dimensions that make up a row.
  explicit Rows(const AnyopTensor* tensor, int inner = 1)
      : data_(static_cast<char*>(tensor->data)),
        dtype_(AnyopDtypeOf(tensor)),
        tensor_(tensor),
        outer_(tensor->ndim - inner),
        item_bytes_(tensor->dtype_bits / 8) {
    // Equal steps from row to row, as almost always, save a division for each dimension.
    int64_t rows = 1;
    for (int d = outer_ - 1; d >= 0; --d) {
      const int64_t size = tensor->shape[d];
      if (size == 1) continue;
      if (rows == 1) step_ = tensor->strides[d];
      even_ = even_ && tensor->strides[d] == step_ * rows;
      rows *= size;
    }
  }

  AnyopDtype dtype() const { return dtype_; }

  char* operator[](int64_t row) const {
    return data_ + (even_ ? row * step_ : Offset(row)) * item_bytes_;
  }

  // n elements of a row, which there need not be.
  template <bool kWritten = false>
  void Fetch(int64_t row, int64_t begin, int64_t n) const {
    cpu::Fetch<kWritten>((*this)[row] + begin * item_bytes_, n * item_bytes_);
  }

 private:
  int64_t Offset(int64_t row) const {
    int64_t offset = 0;
    for (int d = outer_ - 1; d >= 0; --d) {
      offset += row % tensor_->shape[d] * tensor_->strides[d];
      row /= tensor_->shape[d];
    }
    return offset;
  }

  char* data_;
  AnyopDtype dtype_;
  const AnyopTensor* tensor_;
  int outer_, item_bytes_;
  int64_t step_ = 0;
  bool even_ = true;
};

// A row as float, or as double: in place when it has that type. As float, 16-bit floats are
// converted, the whole row at once when it has at most kShortRow elements; as double, any others.
// ahead: bytes to what is read next, most often the next row.
template <typename Wide, int64_t kShortRow = 8192>
class RowReader {
 public:
  RowReader(AnyopDtype dtype, const char* row, int64_t n)
      : RowReader(dtype, row, n, n * (dtype == kDtype<Wide> ? int64_t{sizeof(Wide)} : 2)) {}
  RowReader(AnyopDtype dtype, const char* row, int64_t n, int64_t ahead)
      : dtype_(dtype), row_(row) {
    if (dtype == kDtype<Wide>) {
      wide_ = reinterpret_cast<const Wide*>(row);
      if (n <= kPage && ahead >= kNear) Fetch(row + ahead, n * int64_t{sizeof(Wide)});
    } else if (kDtype<Wide> == kAnyopFloat32 && n <= kShortRow) {
      Convert(0, n);
      wide_ = buffer_;
      ahead_ = row + ahead;
    }
  }
  // An optional tensor of one row; without it, `fallback` in every place.
  RowReader(const AnyopTensor* tensor, Wide fallback, int64_t n)
      : RowReader(tensor ? AnyopDtypeOf(tensor) : kDtype<Wide>,
                  tensor ? static_cast<char*>(tensor->data) : nullptr, tensor ? n : 0, 0) {
    ahead_ = nullptr;
    if (tensor) return;
    for (int64_t i = 0; i < kBlock; ++i) buffer_[i] = fallback;
    repeats_ = true;
  }

  // Elements [begin, begin + n), n at most kBlock.
  const Wide* Read(int64_t begin, int64_t n) {
    if (ahead_) Fetch(ahead_ + begin * 2, n * 2);
    if (wide_) return wide_ + begin;
    if (!repeats_) Convert(begin, n);
    return buffer_;
  }

 private:
  static constexpr int64_t kPage = 4096 / sizeof(Wide);
  static constexpr int64_t kNear = 512;  // bytes; what is nearer, processors fetch by themselves

  void Convert(int64_t begin, int64_t n) {
    if constexpr (kDtype<Wide> == kAnyopFloat32) {
      Widen(Types<float16, bfloat16>(), dtype_, row_ + begin * 2, n, buffer_);
    } else {
      const int64_t item_bytes = dtype_ == kAnyopFloat32 ? 4 : 2;
      Widen(Types<float, float16, bfloat16>(), dtype_, row_ + begin * item_bytes, n, buffer_);
    }
  }

  AnyopDtype dtype_;
  const char* row_;
  const Wide* wide_ = nullptr;
  bool repeats_ = false;
  // Fetched meanwhile, because converting a whole row at once would leave the memory idle until
  // then.
  const char* ahead_ = nullptr;
  alignas(64) Wide buffer_[kDtype<Wide> == kAnyopFloat32 ? kShortRow : kBlock];
};

template <typename Wide>
class RowWriter {
 public:
  // ahead: bytes to what is written some calls later.
  RowWriter(AnyopDtype dtype, char* row, int64_t ahead = 4 * kBlock)
      : dtype_(dtype), row_(row), ahead_(ahead) {}

  // Where n results from `begin` on may be put; Write then brings them into the row.
  Wide* Target(int64_t begin) {
    return dtype_ == kDtype<Wide> ? reinterpret_cast<Wide*>(row_) + begin : buffer_;
  }
  void Write(int64_t begin, int64_t n) {
    if (dtype_ == kDtype<Wide>) return;
    if constexpr (kDtype<Wide> == kAnyopFloat32) {
      char* to = row_ + begin * 2;
      Fetch<true>(to + ahead_, n * 2);  // as in RowReader
      Narrow(Types<float16, bfloat16>(), buffer_, n, dtype_, to);
    } else {
      const int64_t item_bytes = dtype_ == kAnyopFloat32 ? 4 : 2;
      Narrow(Types<float, float16, bfloat16>(), buffer_, n, dtype_, row_ + begin * item_bytes);
    }
  }

 private:
  AnyopDtype dtype_;
  char* row_;
  int64_t ahead_;
  alignas(64) Wide buffer_[kBlock];
};

// What rows of these tensors, of which some may be absent, are computed in: float64 where one is.
template <typename... Tensors>
inline AnyopDtype WidestOf(const Tensors*... tensors) {
  const bool wide = ((tensors && AnyopDtypeOf(tensors) == kAnyopFloat64) || ...);
  return wide ? kAnyopFloat64 : kAnyopFloat32;
}

// N numbers by halves.
template <int N, typename Wide, typename Join>
inline Wide JoinLanes(Wide* a, Join join) {
  if constexpr (N == 1) {
    return a[0];
  } else {
#pragma omp simd
    for (int j = 0; j < N / 2; ++j) a[j] = join(a[j], a[j + N / 2]);
    return JoinLanes<N / 2>(a, join);
  }
}

// Joins f(x[i]...) over a block. Four vectors of partial results, because one would wait for each
// addition; so many that float32 sums keep 1e-6 on rows of any length.
template <typename Wide, typename Join, typename F, typename... In>
inline Wide FoldBlock(Wide start, Join join, F f, int64_t n, const In*... x) {
  constexpr int kLanes = 64 / sizeof(Wide);  // of the widest vector
  Wide a[kLanes], b[kLanes], c[kLanes], d[kLanes];
  for (int j = 0; j < kLanes; ++j) a[j] = b[j] = c[j] = d[j] = start;
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
#pragma omp simd
    for (int j = 0; j < kLanes; ++j) {
      a[j] = join(a[j], f(x[i + j]...));
      b[j] = join(b[j], f(x[i + j + kLanes]...));
      c[j] = join(c[j], f(x[i + j + 2 * kLanes]...));
      d[j] = join(d[j], f(x[i + j + 3 * kLanes]...));
    }
  }
  struct Lanes {
    Wide at[kLanes];
  };
  for (; i < n; i += kLanes) {
    const int left = n - i < kLanes ? static_cast<int>(n - i) : kLanes;
    const auto padded = [i, left](const Wide* from) {
      Lanes rest;  // f of a whole vector, of which `left` results count
#pragma omp simd
      for (int j = 0; j < kLanes; ++j) rest.at[j] = j < left ? from[i + j] : 0;
      return rest;
    };
    const auto add = [&](const auto&... rest) {
#pragma omp simd
      for (int j = 0; j < kLanes; ++j) b[j] = j < left ? join(b[j], f(rest.at[j]...)) : b[j];
    };
    add(padded(x)...);
  }
#pragma omp simd
  for (int j = 0; j < kLanes; ++j) a[j] = join(join(a[j], b[j]), join(c[j], d[j]));
  return JoinLanes<kLanes>(a, join);
}

// Calls visit(begin, size) for the blocks of a row.
template <typename Visit>
inline void ForBlocks(int64_t n, Visit visit) {
  for (int64_t begin = 0; begin < n; begin += kBlock)
    visit(begin, n - begin < kBlock ? n - begin : kBlock);
}

// Sum of f(x[i]...) over a row; the sums of blocks are added in float64.
template <typename Wide, typename F, typename... More>
inline Wide SumBlock(int64_t n, F f, const Wide* x, const More*... more) {
  return FoldBlock(Wide{0}, [](Wide a, Wide b) { return a + b; }, f, n, x, more...);
}
template <typename Wide, typename F, typename... More>
inline double Sum(int64_t n, F f, RowReader<Wide>& x, More&... more) {
  double sum = 0;
  ForBlocks(n, [&](int64_t begin, int64_t size) {
    sum += SumBlock(size, f, x.Read(begin, size), more.Read(begin, size)...);
  });
  return sum;
}

// The greatest of a row; NaN are passed over, and without numbers it is -infinity.
template <typename Wide>
inline Wide Greatest(int64_t n, RowReader<Wide>& x) {
  Wide most = static_cast<Wide>(-__builtin_inf());
  const auto greater = [](Wide a, Wide b) { return a < b ? b : a; };
  ForBlocks(n, [&](int64_t begin, int64_t size) {
    most = FoldBlock(most, greater, [](Wide v) { return v; }, size, x.Read(begin, size));
  });
  return most;
}

// Mean of a row and sum of squared distances from it. Block by block, each around its own mean,
// which neither cancels nor reads the row twice; blocks are joined in float64 (Chan, Golub &
// LeVeque 1979).
struct Moments {
  double mean = 0;
  double squares = 0;

  // The next n elements, behind `before` others.
  void Join(int64_t before, int64_t n, double mean_of_n, double squares_of_n) {
    const double distance = mean_of_n - mean, all = static_cast<double>(before + n),
                 share = static_cast<double>(n) / all;
    mean = mean * (static_cast<double>(before) / all) + mean_of_n * share;  // an infinity: itself
    squares += squares_of_n + distance * distance * share * static_cast<double>(before);
  }
};
template <typename Wide>
inline Wide MeanOfBlock(int64_t n, const Wide* x) {
  return SumBlock(n, [](Wide v) { return v; }, x) / static_cast<Wide>(n);
}
template <typename Wide>
inline Wide SquaresOfBlock(int64_t n, const Wide* x, Wide mean) {
  return SumBlock(n, [mean](Wide v) { return (v - mean) * (v - mean); }, x);
}
template <typename Wide>
inline Moments MomentsOf(int64_t n, RowReader<Wide>& in) {
  Moments all;
  ForBlocks(n, [&](int64_t begin, int64_t size) {
    const Wide* x = in.Read(begin, size);
    const Wide mean = MeanOfBlock(size, x);
    all.Join(begin, size, mean, SquaresOfBlock(size, x, mean));
  });
  return all;
}

// out[i] = f(in[i]...) over a row.
template <typename Wide, typename F, typename... In>
inline void MapRow(int64_t n, F f, RowWriter<Wide>& out, In&... in) {
  ForBlocks(n, [&](int64_t begin, int64_t size) {
    Apply(size, f, out.Target(begin), in.Read(begin, size)...);
    out.Write(begin, size);
  });
}

// Runs `run(args, begin, end)` over rows of D elements on the call's threads.
template <typename Args, typename Run>
inline int32_t RunRows(AnyopCall* call, const Args* args, int64_t rows, int64_t D, Run run) {
  const int64_t grain = D > 0 ? kGrain / D + 1 : kGrain;
  ParallelFor(call, rows, grain, [&](int64_t begin, int64_t end) { run(args, begin, end); });
  return kAnyopOk;
}

}  // namespace anyop::cpu

#endif  // ANYOP_CPU_ROWS_H_
