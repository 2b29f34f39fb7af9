// SPDX-License-Identifier: Apache-2.0
// Gradient of topk and of sort: zeros, and grad_values at the places that the indices name, added
// up in float32 (float64) where they name one more than once. 16-bit rows are added up in scratch.
#include "anyop/ops/topk_backward.h"

#include <algorithm>
#include <atomic>

#include "../embedding/indices.h"
#include "../linear/lanes.h"
#include "anyop/cpu/rows.h"

namespace anyop::cpu {
namespace {

// scratch: D numbers where grad_x has 16 bits. False: an index is outside the row, and left out.
template <typename Wide>
inline bool Scatter(const TopkBackwardArgs& args, int64_t row, Wide* scratch) {
  const int64_t K = args.K, D = args.D;
  const AnyopDtype dtype = AnyopDtypeOf(args.grad_values);
  const int64_t bytes = args.grad_values->dtype_bits / 8;
  const auto* indices = static_cast<const int64_t*>(args.indices->data) + row * K;
  RowReader<Wide> grad(dtype, static_cast<const char*>(args.grad_values->data) + row * K * bytes,
                       K);
  char* to = static_cast<char*>(args.grad_x->data) + row * D * bytes;
  Wide* sums = scratch ? scratch : reinterpret_cast<Wide*>(to);
  __builtin_memset(sums, 0, D * sizeof(Wide));
  bool inside = true;
  ForBlocks(K, [&](int64_t first, int64_t n) {
    const Wide* g = grad.Read(first, n);
    for (int64_t k = 0; k < n; ++k) {
      const int64_t at = indices[first + k];
      const bool is_inside = static_cast<uint64_t>(at) < static_cast<uint64_t>(D);
      if (is_inside) sums[at] += g[k];
      inside = inside && is_inside;
    }
  });
  if constexpr (kDtype<Wide> == kAnyopFloat32) {
    if (scratch) Narrow(Types<float16, bfloat16>(), scratch, D, dtype, to);
  }
  return inside;
}

}  // namespace
}  // namespace anyop::cpu

extern "C" int32_t anyop_topk_backward_cpu(const TopkBackwardArgs* args, AnyopCall* call) {
  using namespace anyop;
  const int64_t step = std::max<int64_t>(1, 8192 / (args->D + args->K + 1));  // rows in a task
  const int64_t tasks = (args->rows + step - 1) / step, lanes = CountLanes(tasks);
  const bool narrow = args->grad_values->dtype_bits == 16;
  const int64_t scratch_bytes = narrow ? lanes * args->D * 4 : 0;
  auto* scratch =
      scratch_bytes ? static_cast<float*>(call->workspace(call, scratch_bytes)) : nullptr;
  if (scratch_bytes && !scratch)
    return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  std::atomic<bool> is_outside{false};
  ForTasks(call, tasks, lanes, [&](int64_t lane, int64_t task) {
    for (int64_t row = task * step; row < std::min(args->rows, (task + 1) * step); ++row) {
      const bool inside =
          args->grad_values->dtype_bits == 64
              ? cpu::Scatter<double>(*args, row, nullptr)
              : cpu::Scatter(*args, row, scratch ? scratch + lane * args->D : nullptr);
      if (!inside) is_outside = true;
    }
  });
  if (!is_outside) return kAnyopOk;
  const int32_t status = CheckIndices<int64_t>(call, *args->indices, args->rows * args->K, args->D);
  if (status) return status;
  return call->fail(call, kAnyopValueError, "indices changed during the call");
}
