// SPDX-License-Identifier: Apache-2.0
// Which tokens of the cache a sequence attends to, by pages or by a list; and its parts.
//
// constexpr functions are compiled for the host and for the device. A token is its row in the
// cache, page * S + place in the page.
#pragma once

#include "anyop/kernel.h"

namespace anyop::mla {

constexpr int64_t kAbsent = -1, kOutside = -2;  // instead of a row
constexpr int kMaxW = 1024;                     // as the schemas say

struct PagedTokens {
  const int32_t *pages, *lengths;
  int64_t N, S, M;

  // kOutside where the length is more than the pages hold, or negative.
  constexpr int64_t CountOf(int64_t b) const {
    return lengths[b] < 0 || lengths[b] > M * S ? kOutside : lengths[b];
  }
  constexpr int64_t RowOf(int64_t b, int64_t t) const {
    const int64_t page = pages[b * M + t / S];
    return page < 0 || page >= N ? kOutside : page * S + t % S;
  }
};

struct ListedTokens {
  const int32_t* indices;
  int64_t rows, T;

  constexpr int64_t CountOf(int64_t) const { return T; }
  constexpr int64_t RowOf(int64_t b, int64_t t) const {
    const int64_t row = indices[b * T + t];
    return row < kAbsent || row >= rows ? kOutside : row;
  }
};

// Part k of count tokens.
struct Part {
  int64_t begin, end;
};
constexpr Part PartOf(int64_t count, int64_t splits, int64_t k) {
  const int64_t size = (count + splits - 1) / splits;
  const int64_t begin = k * size < count ? k * size : count;
  return {begin, begin + size < count ? begin + size : count};
}

template <typename Args>
float ScaleOf(const Args& args) {
  return static_cast<float>(args.scale.has ? args.scale.value
                                           : 1 / __builtin_sqrt(static_cast<double>(args.W)));
}
template <typename Args>
PagedTokens PagesOf(const Args& args) {
  return {static_cast<const int32_t*>(args.pages->data),
          static_cast<const int32_t*>(args.lengths->data), args.N, args.S, args.M};
}
template <typename Args>
ListedTokens ListOf(const Args& args) {
  return {static_cast<const int32_t*>(args.indices->data), args.N * args.S, args.T};
}

}  // namespace anyop::mla
