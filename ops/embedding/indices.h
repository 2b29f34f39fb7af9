// SPDX-License-Identifier: Apache-2.0
// Looks for indices outside a table before anything is written.
#ifndef ANYOP_OPS_EMBEDDING_INDICES_H_
#define ANYOP_OPS_EMBEDDING_INDICES_H_

#include <atomic>
#include <cstdio>
#include <cstring>

#include "anyop/kernel.h"

namespace anyop {

// The place of the first index outside [0, V), or count.
template <typename Index>
int64_t FindOutside(const Index* indices, int64_t count, int64_t V, AnyopCall* call) {
  constexpr int64_t kGrain = 65536 / sizeof(Index);  // below that a thread costs more
  std::atomic<int64_t> first{count};
  ParallelFor(call, count, kGrain, [&](int64_t begin, int64_t end) {
    bool outside = false;
    for (int64_t i = begin; i < end; ++i)
      outside |= static_cast<uint64_t>(indices[i]) >= static_cast<uint64_t>(V);
    if (!outside) return;
    int64_t i = begin;
    while (static_cast<uint64_t>(indices[i]) < static_cast<uint64_t>(V)) ++i;
    int64_t seen = first.load();
    while (i < seen && !first.compare_exchange_weak(seen, i)) {
    }
  });
  return first.load();
}

// "indices[1, 3] is 12, expected 0 <= index < 10"
inline int32_t FailOutside(AnyopCall* call, const AnyopTensor& indices, int64_t at, int64_t index,
                           int64_t V, const char* name = "indices") {
  char place[160] = "", message[320];  // 0 dimensions: "indices is 12"
  for (int32_t d = indices.ndim - 1, length = 0; d >= 0 && length < 120; --d) {
    char rest[sizeof place];
    std::memcpy(rest, place, sizeof place);
    const auto i = static_cast<long long>(at % indices.shape[d]);
    length = std::snprintf(place, sizeof place, rest[0] ? "%lld, %.130s" : "%lld", i, rest);
    at /= indices.shape[d];
  }
  std::snprintf(message, sizeof message, "%s%s%s%s is %lld, expected 0 <= index < %lld", name,
                *place ? "[" : "", place, *place ? "]" : "", static_cast<long long>(index),
                static_cast<long long>(V));
  return call->fail(call, kAnyopValueError, message);
}

// kAnyopOk, or the noted error of the first index outside [0, V).
template <typename Index>
int32_t CheckIndices(AnyopCall* call, const AnyopTensor& indices, int64_t count, int64_t V) {
  const auto* data = static_cast<const Index*>(indices.data);
  const int64_t bad = FindOutside(data, count, V, call);
  return bad < count ? FailOutside(call, indices, bad, data[bad], V) : kAnyopOk;
}

inline int32_t CheckIndices(AnyopCall* call, const AnyopTensor& indices, int64_t count, int64_t V) {
  return indices.dtype_bits == 32 ? CheckIndices<int32_t>(call, indices, count, V)
                                  : CheckIndices<int64_t>(call, indices, count, V);
}

}  // namespace anyop

#endif  // ANYOP_OPS_EMBEDDING_INDICES_H_
