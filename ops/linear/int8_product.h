// SPDX-License-Identifier: Apache-2.0
// Products of int8 with AVX512-VNNI. Sums are int32: exact up to K = 131,071, whatever the order.
#pragma once

#include "anyop/kernel.h"

namespace anyop {

// x (M, K) by the transpose of weight (N, K), both in rows without gaps.
struct Int8Problem {
  const int8_t *x, *weight;
  int64_t M, N, K;
};

// Whether this CPU and this build have the instructions, and no sum can be beyond int32.
bool FitsInt8(const Int8Problem& problem);

// Calls store(context, m, rows, n, cols, sums) for blocks of the results, from any thread; sums:
// rows of `cols` float32, rounded once. False where there is no memory.
bool MultiplyInt8(AnyopCall* call, const Int8Problem& problem,
                  void (*store)(const void* context, int64_t m, int64_t rows, int64_t n,
                                int64_t cols, const float* sums),
                  const void* context);

}  // namespace anyop
