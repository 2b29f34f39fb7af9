// SPDX-License-Identifier: Apache-2.0
// Sums of rows by index: each row of a result is the sum of the rows that have its index, in their
// order, or of their products with rows of the same place. The places of the indices are sorted by
// counting; then each thread writes a range of rows and reads every row once. Sums are float32,
// every 8 additions moved to float64 (float64 for float64).
#ifndef ANYOP_OPS_EMBEDDING_INDEXED_SUMS_H_
#define ANYOP_OPS_EMBEDDING_INDEXED_SUMS_H_

#include "anyop/cpu/rows.h"
#include "indices.h"

namespace anyop::cpu {

struct IndexedSums {
  const AnyopTensor* terms;    // (rows, D)
  const AnyopTensor* factors;  // of each term, as terms; or null
  const AnyopTensor* indices;
  AnyopTensor* out;  // (V, D), of the dtype of terms
  int64_t rows, V, D;
};

namespace {

// Places in indices, those of row v from starts[v] to starts[v + 1].
struct Work {
  const IndexedSums& args;
  const int64_t* starts;
  const int64_t* places;
};

template <typename Index>
void SortPlaces(const IndexedSums& args, int64_t* starts, int64_t* places) {
  const auto* indices = static_cast<const Index*>(args.indices->data);
  for (int64_t v = 0; v <= args.V; ++v) starts[v] = 0;
  for (int64_t i = 0; i < args.rows; ++i) ++starts[indices[i]];
  int64_t before = 0;
  for (int64_t v = 0; v <= args.V; ++v) {
    const int64_t count = starts[v];
    starts[v] = before;
    before += count;
  }
  for (int64_t i = 0; i < args.rows; ++i) places[starts[indices[i]]++] = i;
  for (int64_t v = args.V; v > 0; --v) starts[v] = starts[v - 1];  // now each is the next row's
  starts[0] = 0;
}

// Features [first, first + n) of row v.
template <bool kFactors, typename Wide>
inline void SumPlaces(const Work& work, int64_t v, int64_t first, int64_t n) {
  constexpr int64_t kFlush = 8;
  const IndexedSums& args = work.args;
  const AnyopDtype dtype = AnyopDtypeOf(args.terms);
  const int64_t item_bytes = args.terms->dtype_bits / 8;
  const auto row_of = [&](const AnyopTensor* tensor, int64_t i) {
    const int64_t at = work.places[i] * args.D + first;
    return RowReader<Wide>(dtype, static_cast<const char*>(tensor->data) + at * item_bytes, n);
  };
  RowWriter<Wide> to(dtype, static_cast<char*>(args.out->data) + (v * args.D + first) * item_bytes);
  const int64_t begin = work.starts[v], end = work.starts[v + 1];
  Wide part[kBlock];
  double sum[kBlock];
  const bool is_long = end - begin > kFlush;
  for (int64_t j = 0; j < n; ++j) part[j] = 0;
  for (int64_t j = 0; j < (is_long ? n : 0); ++j) sum[j] = 0;
  for (int64_t i = begin; i < end; ++i) {
    RowReader<Wide> in = row_of(args.terms, i);
    if constexpr (kFactors) {
      RowReader<Wide> factor = row_of(args.factors, i);
      const auto add = [](Wide s, Wide t, Wide f) { return s + t * f; };
      Apply(n, add, part, part, in.Read(0, n), factor.Read(0, n));
    } else {
      Apply(n, [](Wide s, Wide t) { return s + t; }, part, part, in.Read(0, n));
    }
    if ((i - begin) % kFlush < kFlush - 1 || i + 1 == end) continue;
    Apply(n, [](double s, double p) { return s + p; }, sum, sum, part);
    for (int64_t j = 0; j < n; ++j) part[j] = 0;
  }
  const auto all = [](double s, double p) { return static_cast<Wide>(s + p); };
  is_long ? Apply(n, all, to.Target(0), sum, part)
          : Apply(n, [](Wide p) { return p; }, to.Target(0), part);
  to.Write(0, n);
}

[[maybe_unused]] ANYOP_CPU_CLONES void RunIndexedSums(const Work* work, int64_t begin,
                                                      int64_t end) {
  const IndexedSums& args = work->args;
  const int64_t D = args.D, row_bytes = D * (args.terms->dtype_bits / 8);
  char* out = static_cast<char*>(args.out->data);
  const char* terms = static_cast<const char*>(args.terms->data);
  WithFloat(AnyopDtypeOf(args.terms), [&](auto wide) {
    using Wide = decltype(wide);
    for (int64_t v = begin; v < end; ++v) {
      const int64_t first = work->starts[v], count = work->starts[v + 1] - first;
      if (count == 0) {
        __builtin_memset(out + v * row_bytes, 0, row_bytes);
      } else if (args.factors) {
        ForBlocks(D, [&](int64_t at, int64_t n) { SumPlaces<true, Wide>(*work, v, at, n); });
      } else if (count == 1) {
        __builtin_memcpy(out + v * row_bytes, terms + work->places[first] * row_bytes, row_bytes);
      } else {
        ForBlocks(D, [&](int64_t at, int64_t n) { SumPlaces<false, Wide>(*work, v, at, n); });
      }
    }
  });
}

}  // namespace

// Indices were checked before.
inline int32_t SumByIndex(AnyopCall* call, const IndexedSums& args) {
  if (args.V == 0 || args.D == 0) return kAnyopOk;
  auto* starts = static_cast<int64_t*>(
      call->workspace(call, (args.V + 1 + args.rows) * int64_t{sizeof(int64_t)}));
  if (!starts) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  int64_t* places = starts + args.V + 1;
  args.indices->dtype_bits == 32 ? SortPlaces<int32_t>(args, starts, places)
                                 : SortPlaces<int64_t>(args, starts, places);
  const Work work = {args, starts, places};
  return RunRows(call, &work, args.V, args.D, RunIndexedSums);
}

}  // namespace anyop::cpu

#endif  // ANYOP_OPS_EMBEDDING_INDEXED_SUMS_H_
