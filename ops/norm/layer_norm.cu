// SPDX-License-Identifier: Apache-2.0
// layer_norm, native_layer_norm and layer_norm_from_output, which has no mean, on CUDA: see
// norm_rows.h.
#include "anyop/ops/layer_norm.h"
#include "anyop/ops/layer_norm_from_output.h"
#include "anyop/ops/native_layer_norm.h"
#include "norm_rows.h"

namespace {

template <typename Args>
int32_t Run(const Args* args, AnyopCall* call, const AnyopTensor* mean, const AnyopTensor* rstd) {
  const anyop::cuda::NormCall c = {
      call,    args->rows, args->D, args->x, args->out, args->weight,       args->bias,
      nullptr, nullptr,    mean,    rstd,    args->eps, args->weight_offset};
  return anyop::cuda::RunNorm<true, false>(c);
}

}  // namespace

extern "C" int32_t anyop_layer_norm_cuda(const LayerNormArgs* args, AnyopCall* call) {
  return Run(args, call, nullptr, nullptr);
}
extern "C" int32_t anyop_native_layer_norm_cuda(const NativeLayerNormArgs* args, AnyopCall* call) {
  return Run(args, call, args->mean, args->rstd);
}
extern "C" int32_t anyop_layer_norm_from_output_cuda(const LayerNormFromOutputArgs* args,
                                                     AnyopCall* call) {
  return Run(args, call, nullptr, args->rstd);
}
