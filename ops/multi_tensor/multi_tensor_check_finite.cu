// SPDX-License-Identifier: Apache-2.0
// multi_tensor_check_finite on CUDA: a block for each chunk; one read an element.
#include "anyop/cuda/lists.h"
#include "anyop/ops/multi_tensor_check_finite.h"

namespace anyop::cuda {
namespace {

template <typename W, unsigned kKinds, int kBytes>
__global__ void __launch_bounds__(kListThreads, sizeof(W) == 4 ? 4 : 2)
    CheckLists(const __grid_constant__ ListTable<1, kBytes> table, Single found_inf) {
  bool finite = true;
  WalkChunk<W, kKinds>(table, FindChunk<kKinds>(table), 1, 0,
                       [&](Four<W>(&v)[1]) { finite &= AreFinite(v[0]); });
  if (!finite) found_inf.Set();
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_multi_tensor_check_finite_cuda(const MultiTensorCheckFiniteArgs* args,
                                                        AnyopCall* call) {
  using namespace anyop::cuda;
  const Lists<1> lists = {{args->x}};
  const Single found_inf(args->found_inf);
  return StartLists(lists, false, [&](auto zero, auto kinds, const auto& table, unsigned n) {
    return LaunchOver(table, n).Run(
        call, CheckLists<decltype(zero), kinds.value, BytesOf<decltype(table)>>, table, found_inf);
  });
}
