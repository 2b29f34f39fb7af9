// SPDX-License-Identifier: Apache-2.0
// multi_tensor_axpby on CUDA: a block for each chunk; two reads and one write an element.
#include "anyop/cuda/lists.h"
#include "anyop/ops/multi_tensor_axpby.h"

namespace anyop::cuda {
namespace {

template <typename W, unsigned kKinds, int kBytes>
__global__ void __launch_bounds__(kListThreads, sizeof(W) == 4 ? 4 : 2)
    AddLists(const __grid_constant__ ListTable<3, kBytes> table, Single a_of_x, Single b_of_y,
             int64_t check, Single found_inf) {
  const W a = static_cast<W>(a_of_x.Read(1)), b = static_cast<W>(b_of_y.Read(1));
  bool finite = true;
  WalkChunk<W, kKinds>(table, FindChunk<kKinds>(table), 3, 4, [&](Four<W>(&v)[3]) {
    if (check != 1) finite &= AreFinite(v[0]);
    if (check != 0) finite &= AreFinite(v[1]);
#pragma unroll
    for (int k = 0; k < 4; ++k) v[2].at[k] = MulAdd(a, v[0].at[k], b * v[1].at[k]);
  });
  if (!finite) found_inf.Set();
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_multi_tensor_axpby_cuda(const MultiTensorAxpbyArgs* args,
                                                 AnyopCall* call) {
  using namespace anyop::cuda;
  const Lists<3> lists = {{args->x, args->y, args->out}};
  const Single a(args->a), b(args->b), found_inf(args->found_inf);
  return StartLists(lists, false, [&](auto zero, auto kinds, const auto& table, unsigned n) {
    return LaunchOver(table, n).Run(call,
                                    AddLists<decltype(zero), kinds.value, BytesOf<decltype(table)>>,
                                    table, a, b, args->check, found_inf);
  });
}
