// SPDX-License-Identifier: Apache-2.0
// Convolutions with channels last as matrix products: the windows of an image are the rows of a
// matrix, which is written block by block.
#pragma once

#include <algorithm>
#include <cstring>

#include "../linear/convert.h"
#include "../linear/gemm.h"

namespace anyop {

// Windows of R by S places of images N (height, width, channels), one for each of the results
// (out_height, out_width). Turned: those of the gradient, where `stride` is that of the images.
struct Windows {
  AnyopDtype dtype;
  const void* data;
  int64_t N, height, width, channels, out_height, out_width, R, S, stride, padding, dilation;
  bool turned;

  int64_t rows() const { return N * out_height * out_width; }
  int64_t length() const { return R * S * channels; }  // of a row
  bool are_images() const {                            // as they lie there
    return R == 1 && S == 1 && stride == 1 && padding == 0;
  }

  // Where the r-th row of the window of the p-th row of results lies; negative: among zeros.
  int64_t Place(int64_t p, int64_t r, int64_t size) const {
    int64_t at = turned ? p + padding - r * dilation : p * stride - padding + r * dilation;
    if (turned) at = at % stride == 0 ? at / stride : -1;
    return at < size ? at : -1;
  }

  // Writes rows [begin, end) to `to`.
  void Fill(int64_t begin, int64_t end, char* to) const {
    const int64_t bytes = channels * SizeOf(dtype);
    for (int64_t row = begin; row < end; ++row) {
      const int64_t n = row / (out_height * out_width);
      const int64_t p = row / out_width % out_height, q = row % out_width;
      for (int64_t r = 0; r < R; ++r) {
        const int64_t h = Place(p, r, height);
        for (int64_t s = 0; s < S; ++s, to += bytes) {
          const int64_t w = Place(q, s, width);
          const int64_t at = ((n * height + h) * width + w) * bytes;
          if (h < 0 || w < 0) {
            std::memset(to, 0, static_cast<size_t>(bytes));
          } else {
            std::memcpy(to, static_cast<const char*>(data) + at, static_cast<size_t>(bytes));
          }
        }
      }
    }
  }
};

// Blocks of the rows of windows: run(first, rows, matrix) for each, one after the other.
class WindowBlocks {
 public:
  // most: no block has more rows.
  WindowBlocks(AnyopCall* call, const Windows& windows, int64_t most) : call_(call), w_(windows) {
    rows_ = std::clamp<int64_t>(kNumbers / (w_.length() + 1), 512, std::max<int64_t>(most, 512));
    rows_ = std::max<int64_t>(1, std::min(rows_, w_.rows()));
    if (w_.are_images()) return;
    matrix_ = static_cast<char*>(call->workspace(call, rows_ * w_.length() * SizeOf(w_.dtype) + 1));
  }

  bool has_memory() const { return matrix_ || w_.are_images(); }
  int64_t rows() const { return rows_; }  // of a block

  template <typename Run>
  int32_t ForEach(const Run& run) const {
    const int64_t row_bytes = w_.length() * SizeOf(w_.dtype);
    for (int64_t first = 0; first < w_.rows(); first += rows_) {
      const int64_t rows = std::min(rows_, w_.rows() - first);
      const char* matrix = matrix_;
      if (matrix_) {
        ParallelFor(call_, rows, 65536 / (row_bytes + 1) + 1, [&](int64_t begin, int64_t end) {
          w_.Fill(first + begin, first + end, matrix_ + begin * row_bytes);
        });
      } else {
        matrix = static_cast<const char*>(w_.data) + first * row_bytes;
      }
      if (const int32_t status = run(first, rows, static_cast<const void*>(matrix))) return status;
    }
    return kAnyopOk;
  }

 private:
  static constexpr int64_t kNumbers = 512 << 10;  // of a block: they stay in a cache

  AnyopCall* call_;
  const Windows& w_;
  int64_t rows_;
  char* matrix_ = nullptr;
};

// Products of windows by rows of weights (count, length); store(first, rows, sums) takes those of a
// block on the calling thread: rows of `count`, in float32, or in float64 for float64.
template <typename Store>
int32_t Convolve(AnyopCall* call, const Windows& windows, const void* weights, int64_t count,
                 const Store& store) {
  constexpr int64_t kSums = 4 << 20;
  const WindowBlocks blocks(call, windows, kSums / (count + 1));
  const int64_t item = windows.dtype == kAnyopFloat64 ? 8 : 4;
  void* sums = call->workspace(call, blocks.rows() * count * item + 1);
  if (!sums || !blocks.has_memory())
    return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  GemmProblem p = {};
  p.dtype = windows.dtype;
  p.N = count, p.K = windows.length();
  p.b = {weights, 1, p.K, nullptr, nullptr};
  p.out = sums;
  p.wide_out = p.dtype != kAnyopFloat64;
  p.fixed_tiles = true;
  return blocks.ForEach([&](int64_t first, int64_t rows, const void* matrix) {
    p.M = rows;
    p.a = {matrix, p.K, 1, nullptr, nullptr};
    const int32_t status = Gemm(call, p);
    if (status == kAnyopOk) store(first, rows, static_cast<const void*>(sums));
    return status;
  });
}

}  // namespace anyop
