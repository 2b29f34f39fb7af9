// SPDX-License-Identifier: Apache-2.0
// One product on the calling thread, cut so that the BLAS takes its fastest way for the shape.
#pragma once

#include <algorithm>

#include "blas.h"

namespace anyop {

// A matrix as the BLAS takes it: rows of ld elements, stored transposed or not.
template <typename T>
struct BlasView {
  const T* data;
  bool trans;
  int64_t ld;
  const T* At(int64_t row, int64_t col) const {
    return data + (trans ? col * ld + row : row * ld + col);
  }
  BlasView Part(int64_t row, int64_t col) const { return {At(row, col), trans, ld}; }
};

// Multiplications up to which OpenBLAS works in place, where it does at all.
constexpr int64_t kInPlace = 100 * 100 * 100;

struct Cut {
  int64_t M;
  int64_t N;
  int64_t K;
};

// OpenBLAS packs both matrices before it multiplies, which costs more than the product when one of
// them is thin. Its AVX-512 builds work in place up to 100^3 multiplications and, with a transposed
// b, up to 1200 results of 32 and more terms: so thin products are cut into such pieces. Measured
// on Zen 4, one thread, N = K = 4096, b transposed: M=4 12.0 -> 3.0 ms, M=16 15.6 -> 7.5 ms,
// M=128 50 -> 43 ms. The other builds always pack: there the pieces would cost up to 30 per cent.
inline Cut CutThin(bool trans_a, bool trans_b, const Cut& whole) {
  constexpr int64_t kResults = 1024, kThin = 128, kShort = 32;
  const auto even = [](int64_t n) {
    return n <= 64 ? n : (n + (n + 63) / 64 - 1) / ((n + 63) / 64);
  };
  const auto down = [](int64_t n) { return n >= 16 ? n / 16 * 16 : std::max<int64_t>(n, 1); };
  const int64_t thin = std::min(whole.M, whole.N);
  Cut cut = whole;
  if (trans_a) return cut;
  if (trans_b) {
    if (thin > kThin || whole.K < kShort) return cut;
    int64_t& narrow = whole.M < whole.N ? cut.M : cut.N;
    int64_t& wide = whole.M < whole.N ? cut.N : cut.M;
    narrow = even(thin);
    wide = std::min(wide, down(kResults / narrow));
    cut.K = std::min(cut.K, down(kInPlace / (cut.M * cut.N)));
  } else if (whole.M <= kShort) {
    cut.K = std::min<int64_t>(whole.K, 128);
    cut.N = std::min(whole.N, down(kInPlace / (cut.M * cut.K)));
  } else if (whole.K <= kShort / 2) {
    cut.M = std::min(whole.M, down(kInPlace / (whole.N * whole.K)));
  }
  return cut;
}

// c[M,N] = a b + beta c, beta 0 or 1; all sizes positive.
template <typename T>
void Multiply(const Blas& blas, const Cut& size, const BlasView<T>& a, const BlasView<T>& b, T beta,
              T* c, int64_t ldc) {
  const auto [M, N, K] = size;
  if (M == 1) {
    blas.Gemv(!b.trans, b.trans ? N : K, b.trans ? K : N, b.data, b.ld, a.data, a.trans ? a.ld : 1,
              beta, c, 1);
    return;
  }
  if (N == 1) {
    blas.Gemv(a.trans, a.trans ? K : M, a.trans ? M : K, a.data, a.ld, b.data, b.trans ? 1 : b.ld,
              beta, c, ldc);
    return;
  }
  const Cut cut = blas.small_in_place() ? CutThin(a.trans, b.trans, size) : size;
  for (int64_t n = 0; n < N; n += cut.N) {
    for (int64_t k = 0; k < K; k += cut.K) {
      for (int64_t m = 0; m < M; m += cut.M) {
        blas.Gemm(a.trans, b.trans, std::min(cut.M, M - m), std::min(cut.N, N - n),
                  std::min(cut.K, K - k), a.At(m, k), a.ld, b.At(k, n), b.ld, k ? T(1) : beta,
                  c + m * ldc + n, ldc);
      }
    }
  }
}

}  // namespace anyop
