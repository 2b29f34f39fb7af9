// SPDX-License-Identifier: Apache-2.0
// update_scale_hysteresis on CUDA: a thread for each scale.
#include "anyop/cuda/lists.h"
#include "scale_update.h"

namespace anyop::cuda {
namespace {

__global__ void UpdateScales(ScaleUpdate<Single> update, int64_t scales) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < scales) update(i);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_update_scale_hysteresis_cuda(const UpdateScaleHysteresisArgs* args,
                                                      AnyopCall* call) {
  using namespace anyop::cuda;
  if (args->rows == 0) return kAnyopOk;
  const dim3 blocks(static_cast<unsigned>(CeilDiv(args->rows, kListThreads)));
  return Launch{blocks, dim3(kListThreads)}.Run(call, UpdateScales,
                                                anyop::ScaleUpdate<Single>(*args), args->rows);
}
