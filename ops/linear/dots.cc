// SPDX-License-Identifier: Apache-2.0
// Each thread takes some columns of the results; a step adds 32 products (16 of float32) of each
// row and each of four columns to 24 sums.
#include "dots.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

#include <algorithm>
#include <cstring>

#include "convert.h"
#include "pair_products.h"

namespace anyop {
namespace {

constexpr int64_t kMostRows = 16, kMostBesideTiles = 4;

#ifdef ANYOP_DOTS_TARGET
constexpr int kColumns = 4, kTogether = 6;  // of a block: columns, rows
constexpr int64_t kPanel = 64;              // columns whose results are rounded together

// T: float, or uint16_t for bfloat16.
template <typename T>
struct Work {
  const T *a, *b, *bias;
  void* out;
  bool wide_out;                 // of float32
  int64_t a_step, b_step, N, K;  // steps between rows, in elements
};

template <typename T>
struct Lanes {
  using Type = Terms;
  using Stored = StoredTerms;
};
template <>
struct Lanes<float> {
  using Type = Sums;
  using Stored = StoredSums;
};

template <bool kWhole, typename T>
ANYOP_DOTS_TARGET inline typename Lanes<T>::Type Load(const T* from, int64_t left) {
  if (kWhole) return *reinterpret_cast<const typename Lanes<T>::Stored*>(from);
  typename Lanes<T>::Type terms = {};
  std::memcpy(&terms, from, static_cast<size_t>(left) * sizeof *from);
  return terms;
}

// By halves.
ANYOP_DOTS_TARGET inline float Total(const Sums& sums) {
  typedef float Eight __attribute__((vector_size(32)));
  typedef float Four __attribute__((vector_size(16)));
  Eight eight[2];
  std::memcpy(eight, &sums, sizeof eight);
  eight[0] += eight[1];
  Four four[2];
  std::memcpy(four, eight, sizeof four);
  four[0] += four[1];
  return (four[0][0] + four[0][1]) + (four[0][2] + four[0][3]);
}

// The products of the terms from k on with four columns: 64 bytes, or those that are left.
template <int kRows, bool kWhole, typename T>
ANYOP_DOTS_TARGET inline void Step(const Work<T>& w, const T* a, const T* const (&b)[kColumns],
                                   int64_t k, Sums (&sums)[kColumns][kRows]) {
  const int64_t left = w.K - k, next = kColumns * w.b_step + k;
  typename Lanes<T>::Type x[kRows];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m) x[m] = Load<kWhole>(a + m * w.a_step + k, left);
#pragma GCC unroll 4
  for (int n = 0; n < kColumns; ++n) {
    const auto y = Load<kWhole>(b[n] + k, left);
    __builtin_prefetch(b[n] + next);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) sums[n][m] = AddProducts(sums[n][m], x[m], y);
  }
}

// Results of kRows rows from m on and of `count` columns from n on, of each row at to[row]. Where
// there are fewer than four columns, the last one comes again.
template <int kRows, typename T>
ANYOP_DOTS_TARGET void Block(const Work<T>& w, int64_t row, int64_t n, int64_t count,
                             float (*to)[kPanel]) {
  constexpr int64_t kTerms = 64 / sizeof(T);
  const T* a = w.a + row * w.a_step;
  const auto column = [&](int64_t i) { return w.b + (n + std::min(i, count - 1)) * w.b_step; };
  const T* const b[kColumns] = {column(0), column(1), column(2), column(3)};
  Sums sums[kColumns][kRows];
#pragma GCC unroll 4
  for (int i = 0; i < kColumns; ++i) {
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) sums[i][m] = Sums{};
  }
  int64_t k = 0;
  for (; k + kTerms <= w.K; k += kTerms) Step<kRows, true>(w, a, b, k, sums);
  if (k < w.K) Step<kRows, false>(w, a, b, k, sums);
#pragma GCC unroll 4
  for (int i = 0; i < kColumns; ++i) {
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) to[m][i] = Total(sums[i][m]);
  }
}

// Columns [begin, end) of the results, no more than a panel.
template <typename T>
void Panel(const Work<T>& w, int64_t M, int64_t begin, int64_t end) {
  constexpr void (*kBlocks[])(const Work<T>&, int64_t, int64_t, int64_t, float (*)[kPanel]) = {
      Block<1, T>, Block<2, T>, Block<3, T>, Block<4, T>, Block<5, T>, Block<6, T>};
  constexpr AnyopDtype kDtype = sizeof(T) == 4 ? kAnyopFloat32 : kAnyopBFloat16;
  const int64_t blocks = (M + kTogether - 1) / kTogether;
  float sums[kMostRows][kPanel], bias[kPanel] = {};
  for (int64_t n = begin; n < end; n += kColumns) {
    for (int64_t i = 0; i < blocks; ++i) {
      const int64_t m = M * i / blocks, next = M * (i + 1) / blocks;
      float (*to)[kPanel] = reinterpret_cast<float (*)[kPanel]>(&sums[m][n - begin]);
      kBlocks[next - m - 1](w, m, n, std::min<int64_t>(kColumns, end - n), to);
    }
  }
  if (w.bias) Widen(kDtype, w.bias, begin, 1, end - begin, bias);
  for (int64_t m = 0; m < M; ++m) {
    for (int64_t n = 0; n < end - begin; ++n) sums[m][n] += bias[n];
    Narrow(sums[m], end - begin, w.wide_out ? kAnyopFloat32 : kDtype, w.out, m * w.N + begin);
  }
}

template <typename T>
void RunDots(AnyopCall* call, const GemmProblem& p) {
  const Work<T> work = {static_cast<const T*>(p.a.data),
                        static_cast<const T*>(p.b.data),
                        static_cast<const T*>(p.bias),
                        p.out,
                        p.wide_out,
                        p.a.row_stride,
                        p.b.col_stride,
                        p.N,
                        p.K};
  const int64_t panels = (p.N + kPanel - 1) / kPanel;
  ParallelFor(call, panels, 65536 / (p.M * p.K * kPanel) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin * kPanel; n < std::min(end * kPanel, p.N); n += kPanel)
      Panel(work, p.M, n, std::min(n + kPanel, p.N));
  });
}

// Up to how many rows are fast so.
int64_t MostRows(AnyopDtype dtype) {
  if (dtype == kAnyopFloat32) return __builtin_cpu_supports("avx512bw") ? kMostRows : 0;
  if (dtype != kAnyopBFloat16 || !HasBF16Dots()) return 0;
  return HasBF16Tiles() ? kMostBesideTiles : kMostRows;
}
#endif

}  // namespace

bool HasBF16Tiles() {
#ifdef ANYOP_DOTS_TARGET
  static const bool has = [] {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1);
  }();
  return has;
#else
  return false;
#endif
}

bool Dots(AnyopCall* call, const GemmProblem& p) {
#ifdef ANYOP_DOTS_TARGET
  const bool fits = p.M <= MostRows(p.dtype) && p.batch_dims == 0 && p.sum_dims == 0 &&
                    (p.a.col_stride == 1 || p.K == 1) && (p.b.row_stride == 1 || p.K == 1);
  if (!fits) return false;
  if (p.dtype == kAnyopFloat32) {
    RunDots<float>(call, p);
  } else {
    RunDots<uint16_t>(call, p);
  }
  return true;
#else
  (void)call, (void)p;
  return false;
#endif
}

}  // namespace anyop
