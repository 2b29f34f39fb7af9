// SPDX-License-Identifier: Apache-2.0
// Whether two arguments of a call share elements. Needs no torch: bindings/aten uses it, too.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace anyop::glue {

// Where the elements of an argument lie; sizes and strides are borrowed.
struct Extent {
  const char *begin = nullptr, *end = nullptr;  // the same: it has no elements
  const int64_t *sizes = nullptr, *strides = nullptr;
  int64_t ndim = 0, item_bytes = 0;

  Extent() = default;
  Extent(const void* data, const int64_t* sizes, const int64_t* strides, int64_t ndim,
         int64_t item_bytes)
      : begin(static_cast<const char*>(data)),
        end(begin),
        sizes(sizes),
        strides(strides),
        ndim(ndim),
        item_bytes(item_bytes) {
    int64_t last = 0, step = 0;
    for (int64_t d = 0; d < ndim; ++d) {
      if (sizes[d] <= 0 || strides[d] < 0 ||
          __builtin_mul_overflow(sizes[d] - 1, strides[d], &step) ||
          __builtin_add_overflow(last, step, &last))
        return;  // nothing, or what is refused elsewhere
    }
    int64_t bytes = 0;
    if (data && !__builtin_add_overflow(last, 1, &last) &&
        !__builtin_mul_overflow(last, item_bytes, &bytes))
      end += bytes;
  }

  bool Meets(const Extent& other) const { return begin < other.end && other.begin < end; }

  // The same elements in the same places.
  bool Equals(const Extent& other) const {
    return begin == other.begin && item_bytes == other.item_bytes && ndim == other.ndim &&
           std::equal(sizes, sizes + ndim, other.sizes) &&
           std::equal(strides, strides + ndim, other.strides);
  }

  // Until one visit says true; an element is visited once for each place that it has.
  template <class Visit>
  bool Any(Visit&& visit) const {
    std::vector<int64_t> index(static_cast<size_t>(ndim));
    for (const char* at = begin;;) {
      if (visit(at)) return true;
      int64_t d = ndim - 1;
      for (; d >= 0; --d) {
        if (strides[d] == 0) continue;
        at += strides[d] * item_bytes;
        if (++index[static_cast<size_t>(d)] < sizes[d]) break;
        at -= strides[d] * item_bytes * sizes[d];
        index[static_cast<size_t>(d)] = 0;
      }
      if (d < 0) return false;
    }
  }

  // Exact, as columns of one array meet and share nothing; takes a bit for each byte that both
  // span.
  bool SharesElements(const Extent& other) const {
    if (!Meets(other)) return false;
    const char *from = std::max(begin, other.begin), *to = std::min(end, other.end);
    std::vector<bool> mine(static_cast<size_t>(to - from));
    const auto each_byte = [&](const Extent& of, auto&& visit) {
      return of.Any([&](const char* at) {
        for (const char* p = std::max(at, from); p < std::min(at + of.item_bytes, to); ++p)
          if (visit(static_cast<size_t>(p - from))) return true;
        return false;
      });
    };
    each_byte(*this, [&](size_t i) { return mine[i] = true, false; });
    return each_byte(other, [&](size_t i) { return mine[i]; });
  }
};

}  // namespace anyop::glue
