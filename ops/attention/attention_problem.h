// SPDX-License-Identifier: Apache-2.0
// What attention is asked for, as the kernels of all devices read it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "anyop/kernel.h"

namespace anyop {

// Which keys a query may see: query s lies at key s + offset, and sees `left` keys before it and
// `right` behind it.
struct KeyWindow {
  static constexpr int64_t kFar = int64_t{1} << 60;  // no bound; sums with it do not overflow
  int64_t T, offset, left, right;

  KeyWindow(int64_t T, bool causal, int64_t offset, int64_t window_left, int64_t window_right)
      : T(T),
        offset(std::clamp(offset, -kFar, kFar)),
        left(window_left < 0 ? 2 * kFar : std::min(window_left, 2 * kFar)),
        right(window_right < 0 ? 2 * kFar : std::min(window_right, 2 * kFar)) {
    if (causal) right = std::min<int64_t>(right, 0);
  }
  // Keys First(s) to End(s) - 1; none where First(s) >= End(s). Both grow with s.
  int64_t First(int64_t s) const { return std::clamp<int64_t>(s + offset - left, 0, T); }
  int64_t End(int64_t s) const { return std::clamp<int64_t>(s + offset + right + 1, 0, T); }
  bool Cuts(int64_t S) const { return S > 0 && (First(S - 1) > 0 || End(0) < T); }
};

// Keys and values in pages (pages, places, groups, features) of a cache. Where they are one tensor,
// the values are the first numbers of the keys.
struct PagedCache {
  const int32_t* table = nullptr;  // of a sequence: its pages in order; nullptr: no pages
  int64_t places = 0;              // of a page
  const AnyopTensor *k_scale = nullptr, *v_scale = nullptr;  // one for each group, or none

  bool listed = false;  // table has page * places + place of each key instead

  // Of key t, in elements of a tensor whose first dimensions are pages and places.
  int64_t RowOf(const AnyopTensor& x, int64_t t) const {
    const int64_t page = listed ? table[t] / places : table[t / places];
    const int64_t place = listed ? table[t] % places : t % places;
    return page * x.strides[0] + place * x.strides[1];
  }
};

// Sizes of tensors without elements may be anything.
inline int64_t CountPlaces(int64_t pages, int64_t places) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  return places > 0 && pages > kMost / places ? kMost : pages * places;
}

struct AttentionProblem {
  const AnyopTensor *q, *k, *v, *mask, *sinks, *slopes, *out, *lse;  // lse: nullptr if not wanted
  int64_t B, H, G, S, T, D, E;
  KeyWindow window;
  double scale, softcap;  // softcap 0: none
  PagedCache pages = {};
};

template <typename Args>
KeyWindow WindowOf(const Args& args) {
  return KeyWindow(args.T, args.causal, args.offset, args.window_left, args.window_right);
}

// Without features all scores are 0, whatever their factor.
inline double ScaleOr(const AnyopOptionalFloat& scale, int64_t D) {
  if (D == 0) return 1;
  return scale.has ? scale.value : 1 / std::sqrt(static_cast<double>(D));
}
template <typename Args>
double ScaleOf(const Args& args) {
  return ScaleOr(args.scale, args.D);
}

template <typename Args>
AttentionProblem ProblemOf(const Args& args, const AnyopTensor* lse) {
  return {args.q,   args.k, args.v, args.mask,      args.sinks,    args.alibi_slopes,
          args.out, lse,    args.B, args.H,         args.G,        args.S,
          args.T,   args.D, args.E, WindowOf(args), ScaleOf(args), args.softcap};
}

// Queries (1, heads, tokens, W) whose heads all read the same keys, rows of W numbers of a cache;
// the values are the first numbers of the keys, as many as out has.
inline AttentionProblem LatentProblem(const AnyopTensor* q, const AnyopTensor* cache,
                                      const AnyopTensor* sinks, const AnyopTensor* out,
                                      const AnyopTensor* lse, const KeyWindow& window,
                                      const AnyopOptionalFloat& scale, const PagedCache& pages) {
  const int64_t H = q->shape[1], S = q->shape[2], W = q->shape[3];
  return {q, cache,    cache, nullptr,       sinks,  nullptr,           out, lse,  1, H, 1,
          S, window.T, W,     out->shape[3], window, ScaleOr(scale, W), 0,   pages};
}

inline int32_t CheckSoftcap(AnyopCall* call, double softcap) {
  if (softcap >= 0 && std::isfinite(softcap)) return kAnyopOk;
  char text[96];
  std::snprintf(text, sizeof text, "softcap is %g, expected a finite number of at least 0",
                softcap);
  return call->fail(call, kAnyopValueError, text);
}

}  // namespace anyop
