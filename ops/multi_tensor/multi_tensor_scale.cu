// SPDX-License-Identifier: Apache-2.0
// multi_tensor_scale on CUDA: a block for each chunk; one read and one write an element.
#include "anyop/cuda/lists.h"
#include "anyop/ops/multi_tensor_scale.h"

namespace anyop::cuda {
namespace {

template <typename W, unsigned kKinds, int kBytes>
__global__ void __launch_bounds__(kListThreads, sizeof(W) == 4 ? 4 : 2)
    ScaleLists(const __grid_constant__ ListTable<2, kBytes> table, Single scale, Single found_inf) {
  const W factor = static_cast<W>(scale.Read(1));
  bool finite = true;
  WalkChunk<W, kKinds>(table, FindChunk<kKinds>(table), 1, 2, [&](Four<W>(&v)[2]) {
    finite &= AreFinite(v[0]);
#pragma unroll
    for (int k = 0; k < 4; ++k) v[1].at[k] = v[0].at[k] * factor;
  });
  if (!finite) found_inf.Set();
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_multi_tensor_scale_cuda(const MultiTensorScaleArgs* args,
                                                 AnyopCall* call) {
  using namespace anyop::cuda;
  const Lists<2> lists = {{args->x, args->out}};
  const Single scale(args->scale), found_inf(args->found_inf);
  return StartLists(lists, false, [&](auto zero, auto kinds, const auto& table, unsigned n) {
    return LaunchOver(table, n).Run(
        call, ScaleLists<decltype(zero), kinds.value, BytesOf<decltype(table)>>, table, scale,
        found_inf);
  });
}
