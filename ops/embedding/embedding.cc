// SPDX-License-Identifier: Apache-2.0
// Copies one row of weight for each index. Each thread copies a range of rows; all indices are
// looked at before anything is written. 2 D elements moved for each index.
#include "anyop/ops/embedding.h"

#include <cstring>
#include <type_traits>

#include "indices.h"

namespace anyop {
namespace {

constexpr int64_t kGrainBytes = 65536;  // below that a thread costs more than it copies
// Rows are anywhere: asking for the beginning of a later one gains 8 per cent on rows of 1.5 KB.
constexpr int64_t kAhead = 4, kPrefetchBytes = 512;

template <typename Index>
int32_t Embed(const EmbeddingArgs& args, AnyopCall* call) {
  const auto* indices = static_cast<const Index*>(args.indices->data);
  if (const int32_t status = CheckIndices<Index>(call, *args.indices, args.rows, args.V))
    return status;

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
