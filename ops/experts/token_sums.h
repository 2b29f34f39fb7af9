// SPDX-License-Identifier: Apache-2.0
// On the CPU: gathers the tokens of slots, and adds up each token's rows in the order of its slots.
#pragma once

#include <algorithm>
#include <cstring>

#include "anyop/cpu/convert.h"
#include "element_types.h"

namespace anyop {

// to[i] = x[order[i] / K]; 0 where order[i] is outside of [0, slots).
inline void GatherTokensOf(AnyopCall* call, const AnyopTensor* x, const int32_t* order,
                           int64_t rows, int64_t slots, int64_t K, char* to) {
  const int64_t bytes = x->shape[1] * (x->dtype_bits / 8);
  ParallelFor(call, rows, 65536 / (bytes + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const bool inside = order[i] >= 0 && order[i] < slots;
      const char* from = static_cast<const char*>(x->data) + (inside ? order[i] / K * bytes : 0);
      if (inside) std::memcpy(to + i * bytes, from, static_cast<size_t>(bytes));
      if (!inside) std::memset(to + i * bytes, 0, static_cast<size_t>(bytes));
    }
  });
}

// out[t] = sum_k weights[t,k] rows[inverse[t,k]]; weights NULL: 1. rows of N; sums in float32, or
// float64.
template <typename From, typename To>
void SumTokensOf(AnyopCall* call, const From* rows, int64_t N, const int32_t* inverse,
                 const float* weights, int64_t T, int64_t K, int64_t H, To* out) {
  using Wide = typename cpu::WideOf<From>::Type;
  constexpr int64_t kColumns = 256;
  ParallelFor(call, T, 16384 / (H * K + 1) + 1, [&](int64_t begin, int64_t end) {
    Wide sum[kColumns], row[kColumns];
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t h = 0; h < H; h += kColumns) {
        const int64_t n = std::min(kColumns, H - h);
        std::fill_n(sum, n, Wide{0});
        for (int64_t k = 0; k < K; ++k) {
          const int64_t at = inverse[t * K + k];
          if (at < 0 || at >= N) continue;
          const Wide weight = weights ? weights[t * K + k] : 1;
          cpu::WidenFrom(rows + at * H + h, n, row);
#pragma omp simd
          for (int64_t i = 0; i < n; ++i) sum[i] += weight * row[i];
        }
        cpu::NarrowTo(sum, n, out + t * H + h);
      }
    }
  });
}

inline int32_t SumTokens(AnyopCall* call, const AnyopTensor* rows, const int32_t* inverse,
                         const float* weights, int64_t N, int64_t T, int64_t K, int64_t H,
                         const AnyopTensor* out) {
  WithElement(AnyopDtypeOf(rows), [&](auto zero) {
    using E = decltype(zero);
    SumTokensOf(call, static_cast<const E*>(rows->data), N, inverse, weights, T, K, H,
                static_cast<E*>(out->data));
  });
  return kAnyopOk;
}

}  // namespace anyop
