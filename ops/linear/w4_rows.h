// SPDX-License-Identifier: Apache-2.0
// Rows of 4-bit weights with their scales and zero points, on the CPU.
#pragma once

#include <algorithm>

#include "anyop/cpu.h"
#include "w4_layout.h"

namespace anyop::w4 {

struct Rows {
  const uint8_t* weight;
  const void* scale;
  const int32_t* zero;  // or nullptr
  AnyopDtype scale_dtype;
  int64_t zero_row, zero_step, group, N, K;
};

inline Rows RowsOf(const AnyopTensor* weight, const AnyopTensor* scale, const AnyopTensor* zero,
                   int64_t group, int64_t N, int64_t K) {
  Rows rows = {};
  rows.weight = static_cast<const uint8_t*>(weight->data);
  rows.scale = scale->data;
  rows.scale_dtype = AnyopDtypeOf(scale);
  if (zero) {
    rows.zero = static_cast<const int32_t*>(zero->data);
    rows.zero_row = zero->strides[0], rows.zero_step = zero->strides[1];
  }
  // Sums with a group's size do not overflow.
  rows.group = std::min(group, std::max<int64_t>(K, 1)), rows.N = N, rows.K = K;
  return rows;
}

inline int64_t GroupsOf(const Rows& w) { return (w.K + w.group - 1) / w.group; }

inline float ScaleOf(const Rows& w, int64_t group, int64_t n) {
  const int64_t at = group * w.N + n;
  if (w.scale_dtype == kAnyopFloat32) return static_cast<const float*>(w.scale)[at];
  if (w.scale_dtype == kAnyopFloat16)
    return cpu::Load<float>(static_cast<const cpu::float16*>(w.scale)[at]);
  return cpu::Load<float>(static_cast<const cpu::bfloat16*>(w.scale)[at]);
}

inline int ZeroOf(const Rows& w, int64_t group, int64_t n) {
  return w.zero ? ZeroOf(w.zero + group * w.zero_row, w.zero_step, n) : kMiddle;
}

// Scales and zero points of results [n, n + count) and of groups [first, end), those of a result
// side by side: scale[i * step + g - first]. They lie a row of results apart in memory, often a
// power of two, for which a cache has few places: a line is read once here.
inline void GatherScales(const Rows& w, int64_t n, int64_t count, int64_t first, int64_t end,
                         int64_t step, float* scale, float* zero) {
  for (int64_t g = first; g < end; ++g)
    for (int64_t i = 0; i < count; ++i) {
      scale[i * step + g - first] = ScaleOf(w, g, n + i);
      zero[i * step + g - first] = static_cast<float>(ZeroOf(w, g, n + i));
    }
}

// All of them so, in memory for 2 * N * GroupsOf() numbers: scales, then zero points.
inline void GatherAll(AnyopCall* call, const Rows& w, float* to) {
  constexpr int64_t kTogether = 16;
  const int64_t groups = GroupsOf(w), panels = (w.N + kTogether - 1) / kTogether;
  ParallelFor(call, panels, 2048 / (groups + 1) + 1, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin * kTogether; n < w.N && n < end * kTogether; n += kTogether) {
      const int64_t count = w.N - n < kTogether ? w.N - n : kTogether;
      float* scale = to + n * groups;
      GatherScales(w, n, count, 0, groups, groups, scale, scale + w.N * groups);
    }
  });
}

typedef uint32_t Words __attribute__((vector_size(16)));
typedef Words StoredWords __attribute__((aligned(1), may_alias));
typedef int32_t Ints __attribute__((vector_size(32)));
typedef float Eight __attribute__((vector_size(32)));
typedef Eight StoredEight __attribute__((aligned(4), may_alias));

// Eight factors of a block less the zero point: the even ones, or, kOdd = 1, the odd ones, of the
// sixteen from 16 * kHalf on. Vectors of more than 32 bytes go by memory where there is no AVX-512.
template <int kOdd, int kHalf>
inline __attribute__((always_inline)) void FactorsOf(const Words& four, float zero, Eight* to) {
  constexpr int kShift = 16 * kOdd + 8 * kHalf;
  const Words low = four >> kShift & 15, high = four >> (kShift + 4) & 15;
  const auto all = (Ints)__builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7);
  *to = __builtin_convertvector(all, Eight) - zero;
}

// One of each by turns.
inline __attribute__((always_inline)) void StoreSixteen(const Eight& even, const Eight& odd,
                                                        float* to) {
  StoredEight* at = reinterpret_cast<StoredEight*>(to);  // auto would take it for aligned
  at[0] = __builtin_shufflevector(even, odd, 0, 8, 1, 9, 2, 10, 3, 11);
  at[1] = __builtin_shufflevector(even, odd, 4, 12, 5, 13, 6, 14, 7, 15);
}

// to[i] = (factor first + i of row n - zero point) * scale for i < count; first: a multiple of 32;
// gathered: by GatherAll. Inlined into functions of ANYOP_CPU_CLONES.
inline void UnpackPart(const Rows& w, const float* gathered, int64_t n, int64_t first,
                       int64_t count, float* to) {
  const int64_t groups = GroupsOf(w);
  const float *scales = gathered + n * groups, *zeros = scales + w.N * groups;
  const uint8_t* row = w.weight + n * (w.K / 2);
  for (int64_t k = 0; k < count; k += kFactors) {
    const int64_t group = (first + k) / w.group;
    const float scale = scales[group], zero = zeros[group];
    const uint8_t* from = row + (first + k) / 2;
    if (k + kFactors <= count) {
      const Words four = *reinterpret_cast<const StoredWords*>(from);
      Eight even[2], odd[2];
      FactorsOf<0, 0>(four, zero, &even[0]), FactorsOf<0, 1>(four, zero, &even[1]);
      FactorsOf<1, 0>(four, zero, &odd[0]), FactorsOf<1, 1>(four, zero, &odd[1]);
      StoreSixteen(even[0] * scale, odd[0] * scale, to + k);
      StoreSixteen(even[1] * scale, odd[1] * scale, to + k + 16);
      continue;
    }
    for (int64_t i = 0; i < count - k; ++i)
      to[k + i] = (static_cast<float>(from[i / 2] >> 4 * (i % 2) & 15) - zero) * scale;
  }
}

}  // namespace anyop::w4
