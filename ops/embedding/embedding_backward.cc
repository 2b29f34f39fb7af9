// SPDX-License-Identifier: Apache-2.0
// Gradient of embedding: each row of grad_weight is the sum of the rows of grad_out that have its
// index, in their order. The places of the indices are sorted by counting; then each thread writes
// a range of rows and reads every row of grad_out once. Sums are float32, every 64 additions moved
// to float64 (float64 for float64).
#include "anyop/ops/embedding_backward.h"

#include "anyop/cpu_rows.h"
#include "indices.h"

namespace anyop::cpu {
namespace {

// Places in indices, those of row v from starts[v] to starts[v + 1].
struct Work {
  const EmbeddingBackwardArgs& args;
  const int64_t* starts;
  const int64_t* places;
};

template <typename Index>
void SortPlaces(const EmbeddingBackwardArgs& args, int64_t* starts, int64_t* places) {
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
template <typename Wide>
inline void SumPlaces(const Work& work, int64_t v, int64_t first, int64_t n) {
  constexpr int64_t kFlush = 64;
  const EmbeddingBackwardArgs& args = work.args;
  const AnyopDtype dtype = AnyopDtypeOf(args.grad_out);
  const int64_t item_bytes = args.grad_out->dtype_bits / 8;
  const char* grad = static_cast<const char*>(args.grad_out->data);
  RowWriter<Wide> to(
      dtype, static_cast<char*>(args.grad_weight->data) + (v * args.D + first) * item_bytes);
  const int64_t begin = work.starts[v], end = work.starts[v + 1];
  Wide part[kBlock];
  double sum[kBlock];
  const bool is_long = end - begin > kFlush;
  for (int64_t j = 0; j < n; ++j) part[j] = 0;
  for (int64_t j = 0; j < (is_long ? n : 0); ++j) sum[j] = 0;
  for (int64_t i = begin; i < end; ++i) {
    RowReader<Wide> in(dtype, grad + (work.places[i] * args.D + first) * item_bytes, n);
    Apply(n, [](Wide s, Wide g) { return s + g; }, part, part, in.Read(0, n));
    if ((i - begin) % kFlush < kFlush - 1 || i + 1 == end) continue;
    Apply(n, [](double s, double p) { return s + p; }, sum, sum, part);
    for (int64_t j = 0; j < n; ++j) part[j] = 0;
  }
  const auto all = [](double s, double p) { return static_cast<Wide>(s + p); };
  is_long ? Apply(n, all, to.Target(0), sum, part)
          : Apply(n, [](Wide p) { return p; }, to.Target(0), part);
  to.Write(0, n);
}

ANYOP_CPU_CLONES void Run(const Work* work, int64_t begin, int64_t end) {
  const int64_t D = work->args.D, row_bytes = D * (work->args.grad_out->dtype_bits / 8);
  char* out = static_cast<char*>(work->args.grad_weight->data);
  const char* grad = static_cast<const char*>(work->args.grad_out->data);
  WithFloat(AnyopDtypeOf(work->args.grad_out), [&](auto wide) {
    for (int64_t v = begin; v < end; ++v) {
      const int64_t first = work->starts[v], count = work->starts[v + 1] - first;
      if (count == 0) __builtin_memset(out + v * row_bytes, 0, row_bytes);
      if (count == 1)
        __builtin_memcpy(out + v * row_bytes, grad + work->places[first] * row_bytes, row_bytes);
      if (count <= 1) continue;
      ForBlocks(D, [&](int64_t at, int64_t n) { SumPlaces<decltype(wide)>(*work, v, at, n); });
    }
  });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_embedding_backward_cpu(const EmbeddingBackwardArgs* args,
                                                AnyopCall* call) {
  using namespace anyop::cpu;
  const bool narrow = args->indices->dtype_bits == 32;
  const auto check = narrow ? anyop::CheckIndices<int32_t> : anyop::CheckIndices<int64_t>;
  if (const int32_t status = check(call, *args->indices, args->rows, args->V)) return status;
  if (args->V == 0 || args->D == 0) return kAnyopOk;
  auto* starts = static_cast<int64_t*>(
      call->workspace(call, (args->V + 1 + args->rows) * int64_t{sizeof(int64_t)}));
  if (!starts) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  int64_t* places = starts + args->V + 1;
  narrow ? SortPlaces<int32_t>(*args, starts, places) : SortPlaces<int64_t>(*args, starts, places);
  const Work work = {*args, starts, places};
  return RunRows(call, &work, args->V, args->D, Run);
}
