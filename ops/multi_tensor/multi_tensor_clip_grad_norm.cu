// SPDX-License-Identifier: Apache-2.0
// multi_tensor_clip_grad_norm on CUDA: a read an element for the norm, and where that is too large
// another one and a write. The device decides.
#include "anyop/ops/multi_tensor_clip_grad_norm.h"
#include "clip.h"
#include "cuda_norms.h"

namespace anyop::cuda {
namespace {

template <typename W, unsigned kKinds, int kBytes>
__global__ void __launch_bounds__(kListThreads, sizeof(W) == 4 ? 4 : 2)
    ClipLists(const __grid_constant__ ListTable<1, kBytes> table, Single max_norm, Single total) {
  if (table.first_chunk == 0) WaitForWork();  // for the norm
  const W factor = static_cast<W>(ClipFactor(max_norm.Read(0), total.Read(0)));
  if (factor == 1) return WaitForWork();
  WalkChunk<W, kKinds>(table, FindChunk<kKinds>(table), 1, 1, [&](Four<W>(&v)[1]) {
#pragma unroll
    for (int k = 0; k < 4; ++k) v[0].at[k] *= factor;
  });
}

struct WriteGiven {
  Single norm;
  float* to;
  __device__ void operator()(double) const { *to = static_cast<float>(norm.Read(0)); }
};

int32_t FindTotal(AnyopCall* call, const MultiTensorClipGradNormArgs& args) {
  auto* total = static_cast<float*>(args.total->data);
  if (args.norm) return StartAll<false>(call, Parts(), WriteGiven{Single(args.norm), total});
  if (args.norm_type == 0) return WriteNorms<true>(call, args.g, Single(), args.total, nullptr);
  return WriteNorms<false>(call, args.g, Single(), args.total, nullptr);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_multi_tensor_clip_grad_norm_cuda(const MultiTensorClipGradNormArgs* args,
                                                          AnyopCall* call) {
  using namespace anyop::cuda;
  if (int32_t status = FindTotal(call, *args)) return status;
  const Lists<1> lists = {{args->g}, true};  // the norm has left its last tensors in the cache
  const Single max_norm(args->max_norm), total(args->total);
  return StartLists(lists, false, [&](auto zero, auto kinds, const auto& table, unsigned n) {
    Launch launch = LaunchOver(table, n);
    launch.overlaps = true;
    return launch.Run(call, ClipLists<decltype(zero), kinds.value, BytesOf<decltype(table)>>, table,
                      max_norm, total);
  });
}
