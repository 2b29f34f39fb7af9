// SPDX-License-Identifier: Apache-2.0
// Which rows belong to which expert, whatever the offsets or counts say, and zeros in the others.
#pragma once

#include <algorithm>
#include <cstring>

#include "../linear/convert.h"
#include "anyop/kernel.h"

namespace anyop {

// Calls visit(expert, begin, end) for all experts in order, empty ones too, and rest(begin, end)
// for the rows between and around them; stops at a status that is not kAnyopOk.
//
// offsets: E + 1. One that is negative or less than one before it counts as the greatest before it
// (at least 0), one beyond T as T: the segments lie in [0, T) and do not overlap.
template <typename Visit, typename Rest>
int32_t ForSegments(const AnyopTensor* offsets, int64_t E, int64_t T, const Visit& visit,
                    const Rest& rest) {
  const auto* at = static_cast<const int32_t*>(offsets->data);
  int64_t begin = std::clamp<int64_t>(at[0], 0, T);
  rest(0, begin);
  for (int64_t e = 0; e < E; ++e) {
    const int64_t end = std::clamp<int64_t>(at[e + 1], begin, T);
    if (const int32_t status = visit(e, begin, end)) return status;
    begin = end;
  }
  rest(begin, T);
  return kAnyopOk;
}

// The same for E parts of C rows each, of which the first counts[e] are the expert's; a negative
// count is 0, one beyond C is C. Rows are counted through all parts.
template <typename Visit, typename Rest>
int32_t ForCounts(const AnyopTensor* counts, int64_t E, int64_t C, const Visit& visit,
                  const Rest& rest) {
  const auto* count = static_cast<const int32_t*>(counts->data);
  for (int64_t e = 0; e < E; ++e) {
    const int64_t begin = e * C, end = begin + std::clamp<int64_t>(count[e], 0, C);
    if (const int32_t status = visit(e, begin, end)) return status;
    rest(end, begin + C);
  }
  return kAnyopOk;
}

// Rows of `to` without gaps.
class Rest {
 public:
  Rest(AnyopCall* call, const AnyopTensor* to, int64_t columns)
      : call_(call),
        data_(to ? static_cast<char*>(to->data) : nullptr),
        row_bytes_(to ? columns * (to->dtype_bits / 8) : 0) {}

  void operator()(int64_t begin, int64_t end) const {
    if (!data_ || begin == end) return;
    ParallelFor(call_, end - begin, 65536 / (row_bytes_ + 1) + 1, [&](int64_t from, int64_t to) {
      std::memset(data_ + (begin + from) * row_bytes_, 0,
                  static_cast<size_t>((to - from) * row_bytes_));
    });
  }

 private:
  AnyopCall* call_;
  char* data_;
  int64_t row_bytes_;
};

// Element `index` of a tensor without gaps.
inline char* ElementOf(const AnyopTensor* tensor, int64_t index) {
  return static_cast<char*>(tensor->data) + index * (tensor->dtype_bits / 8);
}

}  // namespace anyop
