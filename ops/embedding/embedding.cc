// SPDX-License-Identifier: Apache-2.0
// Copies one row of weight for each index. Each thread copies a range of rows; all indices are
// looked at before anything is written. 2 D elements moved for each index.
#include "anyop/ops/embedding.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <type_traits>

namespace anyop {
namespace {

constexpr int64_t kGrainBytes = 65536;  // below that a thread costs more than it copies
// Rows are anywhere: asking for the beginning of a later one gains 8 per cent on rows of 1.5 KB.
constexpr int64_t kAhead = 4, kPrefetchBytes = 512;

template <typename Index>
int64_t FindOutside(const Index* indices, int64_t count, int64_t V, AnyopCall* call) {
  std::atomic<int64_t> first{count};
  ParallelFor(call, count, kGrainBytes / sizeof(Index), [&](int64_t begin, int64_t end) {
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
int32_t FailOutside(AnyopCall* call, const AnyopTensor& indices, int64_t at, int64_t index,
                    int64_t V) {
  char place[160] = "", message[320];  // 0 dimensions: "indices is 12"
  for (int32_t d = indices.ndim - 1, length = 0; d >= 0 && length < 120; --d) {
    char rest[sizeof place];
    std::memcpy(rest, place, sizeof place);
    const auto i = static_cast<long long>(at % indices.shape[d]);
    length = std::snprintf(place, sizeof place, rest[0] ? "%lld, %.130s" : "%lld", i, rest);
    at /= indices.shape[d];
  }
  std::snprintf(message, sizeof message, "indices%s%s%s is %lld, expected 0 <= index < %lld",
                *place ? "[" : "", place, *place ? "]" : "", static_cast<long long>(index),
                static_cast<long long>(V));
  return call->fail(call, kAnyopValueError, message);
}

template <typename Index>
int32_t Embed(const EmbeddingArgs& args, AnyopCall* call) {
  const auto* indices = static_cast<const Index*>(args.indices->data);
  const int64_t bad = FindOutside(indices, args.rows, args.V, call);
  if (bad < args.rows) return FailOutside(call, *args.indices, bad, indices[bad], args.V);

  const int64_t element = args.weight->dtype_bits / 8;
  const int64_t row_bytes = args.D * element;
  if (row_bytes == 0) return kAnyopOk;
  const int64_t weight_step = args.weight->strides[0] * element;
  const auto* weight = static_cast<const char*>(args.weight->data);
  auto* out = static_cast<char*>(args.out->data);
  ParallelFor(call, args.rows, kGrainBytes / row_bytes + 1, [&](int64_t begin, int64_t end) {
    const auto copy = [&](auto bytes) {  // a size known to the compiler needs no call
      for (int64_t i = begin; i < end; ++i) {
        if (i + kAhead < end) {
          const char* next = weight + indices[i + kAhead] * weight_step;
          for (int64_t at = 0; at < bytes && at < kPrefetchBytes; at += 64)
            __builtin_prefetch(next + at);
        }
        std::memcpy(out + i * bytes, weight + indices[i] * weight_step, static_cast<size_t>(bytes));
      }
    };
    switch (row_bytes) {
      case 4:
        return copy(std::integral_constant<int64_t, 4>());
      case 8:
        return copy(std::integral_constant<int64_t, 8>());
      case 16:
        return copy(std::integral_constant<int64_t, 16>());
      case 32:
        return copy(std::integral_constant<int64_t, 32>());
      case 64:
        return copy(std::integral_constant<int64_t, 64>());
      default:
        return copy(row_bytes);
    }
  });
  return kAnyopOk;
}

}  // namespace
}  // namespace anyop

extern "C" int32_t anyop_embedding_cpu(const EmbeddingArgs* args, AnyopCall* call) {
  if (args->indices->dtype_bits == 32) return anyop::Embed<int32_t>(*args, call);
  return anyop::Embed<int64_t>(*args, call);
}
