// SPDX-License-Identifier: Apache-2.0
// The library that multiplies matrices: OpenBLAS of the package scipy-openblas64, opened at the
// first product.
#pragma once

#include "anyop/kernel.h"

namespace anyop {

// Row-major, ILP64, one thread: the caller divides the work. Safe from many threads at once.
// trans says that the operand is stored transposed; ld counts elements between stored rows.
class Blas {
 public:
  // c[M,N] = a[M,K] b[K,N] + beta c; beta is 0 or 1, c is not read when it is 0.
  void Gemm(bool trans_a, bool trans_b, int64_t M, int64_t N, int64_t K, const float* a,
            int64_t lda, const float* b, int64_t ldb, float beta, float* c, int64_t ldc) const {
    sgemm_(kRowMajor, Flag(trans_a), Flag(trans_b), M, N, K, 1, a, lda, b, ldb, beta, c, ldc);
  }
  void Gemm(bool trans_a, bool trans_b, int64_t M, int64_t N, int64_t K, const double* a,
            int64_t lda, const double* b, int64_t ldb, double beta, double* c, int64_t ldc) const {
    dgemm_(kRowMajor, Flag(trans_a), Flag(trans_b), M, N, K, 1, a, lda, b, ldb, beta, c, ldc);
  }

  // y[M] = a x + beta y, where a is stored as rows by cols: M is rows, or cols when it is
  // transposed.
  void Gemv(bool trans, int64_t rows, int64_t cols, const float* a, int64_t lda, const float* x,
            int64_t x_step, float beta, float* y, int64_t y_step) const {
    sgemv_(kRowMajor, Flag(trans), rows, cols, 1, a, lda, x, x_step, beta, y, y_step);
  }
  void Gemv(bool trans, int64_t rows, int64_t cols, const double* a, int64_t lda, const double* x,
            int64_t x_step, double beta, double* y, int64_t y_step) const {
    dgemv_(kRowMajor, Flag(trans), rows, cols, 1, a, lda, x, x_step, beta, y, y_step);
  }

  // Whether small products are computed without packing the matrices first: the AVX-512 builds.
  bool small_in_place() const { return small_in_place_; }

  // Fills in the functions of an open library; the name of the one that it lacks, nullptr when all
  // are there.
  const char* Bind(void* library);

 private:
  static constexpr int kRowMajor = 101;  // the CBLAS standard's numbers
  static int Flag(bool trans) { return trans ? 112 : 111; }

  template <typename T>
  using GemmFunction = void (*)(int, int, int, int64_t, int64_t, int64_t, T, const T*, int64_t,
                                const T*, int64_t, T, T*, int64_t);
  template <typename T>
  using GemvFunction = void (*)(int, int, int64_t, int64_t, T, const T*, int64_t, const T*, int64_t,
                                T, T*, int64_t);
  GemmFunction<float> sgemm_ = nullptr;
  GemmFunction<double> dgemm_ = nullptr;
  GemvFunction<float> sgemv_ = nullptr;
  GemvFunction<double> dgemv_ = nullptr;
  bool small_in_place_ = false;
};

// kAnyopOk and the library, or the status of a noted error that says where it was looked for.
int32_t GetBlas(AnyopCall* call, const Blas** blas);

}  // namespace anyop
