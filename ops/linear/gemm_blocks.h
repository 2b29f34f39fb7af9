// SPDX-License-Identifier: Apache-2.0
// A product whose results are changed before they are stored: blocks of its rows in wide memory.
#pragma once

#include <algorithm>

#include "convert.h"
#include "gemm.h"

namespace anyop {

// Computes the product p block by block of its rows, in float32 (float64 for float64), and calls
// store(first_row, rows, sums) for each, on the calling thread. What lies in p.out does not matter;
// there are no batches. sums: rows of N, until store returns. first_row is a multiple of 32.
template <typename Store>
int32_t GemmInBlocks(AnyopCall* call, const GemmProblem& problem, const Store& store) {
  constexpr int64_t kNumbers = 4 << 20, kLeastRows = 256;  // 16 MiB; so many that b is read rarely
  GemmProblem p = problem;
  if (p.M == 0 || p.N == 0) return kAnyopOk;
  const int64_t item = p.dtype == kAnyopFloat64 ? 8 : 4, M = p.M;
  const int64_t most = std::min(p.M, std::max(kLeastRows, kNumbers / p.N / 32 * 32));
  p.wide_out = p.dtype != kAnyopFloat64;
  p.out = call->workspace(call, most * p.N * item);
  if (!p.out) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  for (int64_t row = 0; row < M; row += most) {
    p.M = std::min(most, M - row);
    if (const int32_t status = Gemm(call, p)) return status;
    store(row, p.M, p.out);
    p.a.data = static_cast<const char*>(p.a.data) + most * p.a.row_stride * SizeOf(p.dtype);
  }
  return kAnyopOk;
}

// x (M, K) by the transpose of weight (N, K), both in rows without gaps; the same bits for any
// number of threads.
inline GemmProblem RowsByRows(AnyopDtype dtype, int64_t M, int64_t N, int64_t K, const void* x,
                              const void* weight) {
  GemmProblem p = {};
  p.dtype = dtype;
  p.M = M, p.N = N, p.K = K;
  p.a = {x, K, 1, nullptr, nullptr};
  p.b = {weight, 1, K, nullptr, nullptr};
  p.fixed_tiles = true;
  return p;
}

// The gradient of its x: grad (M, N) by weight (N, K).
inline GemmProblem GradientOfRows(AnyopDtype dtype, int64_t M, int64_t N, int64_t K,
                                  const void* grad, const void* weight, void* out) {
  GemmProblem p = {};
  p.dtype = dtype;
  p.M = M, p.N = K, p.K = N;
  p.a = {grad, N, 1, nullptr, nullptr};
  p.b = {weight, K, 1, nullptr, nullptr};
  p.out = out;
  p.fixed_tiles = true;
  return p;
}

// And of its weight: the transpose of grad (M, N) by x (M, K).
inline GemmProblem GradientOfWeight(AnyopDtype dtype, int64_t M, int64_t N, int64_t K,
                                    const void* grad, const void* x, void* out) {
  GemmProblem p = {};
  p.dtype = dtype;
  p.M = N, p.N = K, p.K = M;
  p.a = {grad, 1, N, nullptr, nullptr};
  p.b = {x, K, 1, nullptr, nullptr};
  p.out = out;
  p.fixed_tiles = true;
  return p;
}

}  // namespace anyop
