// SPDX-License-Identifier: Apache-2.0
// native_layer_norm on CUDA: see norm_rows.h.
#include "anyop/ops/native_layer_norm.h"
#include "norm_rows.h"

extern "C" int32_t anyop_native_layer_norm_cuda(const NativeLayerNormArgs* args, AnyopCall* call) {
  const anyop::cuda::NormCall c = {
      call,    args->rows, args->D,    args->x,    args->out, args->weight,       args->bias,
      nullptr, nullptr,    args->mean, args->rstd, args->eps, args->weight_offset};
  return anyop::cuda::RunNorm<true, false>(c);
}
