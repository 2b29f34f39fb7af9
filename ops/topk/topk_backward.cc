// SPDX-License-Identifier: Apache-2.0
// Gradient of topk: zeros, and grad_values at the places that the indices name, added up in float32
// (float64) where they name one more than once. A row is built block by block in the cache.
#include "anyop/ops/topk_backward.h"

#include <atomic>

#include "anyop/cpu_rows.h"

namespace anyop::cpu {
namespace {

struct Work {
  const TopkBackwardArgs& args;
  std::atomic<bool>& is_outside;
};

template <typename Wide>
inline void Scatter(const Work& work, int64_t row) {
  const TopkBackwardArgs& args = work.args;
  const int64_t K = args.K, D = args.D;
  const AnyopDtype dtype = AnyopDtypeOf(args.grad_values);
  const int64_t bytes = args.grad_values->dtype_bits / 8;
  const auto* indices = static_cast<const int64_t*>(args.indices->data) + row * K;
  RowReader<Wide> grad(dtype, static_cast<const char*>(args.grad_values->data) + row * K * bytes,
                       K);
  RowWriter<Wide> to(dtype, static_cast<char*>(args.grad_x->data) + row * D * bytes);
  for (int64_t k = 0; k < K; ++k) {
    if (static_cast<uint64_t>(indices[k]) >= static_cast<uint64_t>(D)) work.is_outside = true;
  }
  ForBlocks(D, [&](int64_t begin, int64_t size) {
    Wide* sums = to.Target(begin);
    for (int64_t i = 0; i < size; ++i) sums[i] = 0;
    ForBlocks(K, [&](int64_t first, int64_t n) {
      const Wide* g = grad.Read(first, n);
      for (int64_t k = 0; k < n; ++k) {
        const int64_t at = indices[first + k] - begin;
        if (static_cast<uint64_t>(at) < static_cast<uint64_t>(size)) sums[at] += g[k];
      }
    });
    to.Write(begin, size);
  });
}

ANYOP_CPU_CLONES void Run(const Work* work, int64_t begin, int64_t end) {
  WithFloat(AnyopDtypeOf(work->args.grad_values), [&](auto wide) {
    for (int64_t row = begin; row < end; ++row) Scatter<decltype(wide)>(*work, row);
  });
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_topk_backward_cpu(const TopkBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cpu;
  std::atomic<bool> is_outside{false};
  const Work work = {*args, is_outside};
  RunRows(call, &work, args->rows, args->D + args->K, Run);
  if (!is_outside) return kAnyopOk;
  return call->fail(call, kAnyopValueError, "an index is outside, expected 0 <= index < D");
}
