// SPDX-License-Identifier: Apache-2.0
// fused_add_layer_norm on CUDA: see norm_rows.h.
#include "anyop/ops/fused_add_layer_norm.h"
#include "norm_rows.h"

extern "C" int32_t anyop_fused_add_layer_norm_cuda(const FusedAddLayerNormArgs* args,
                                                   AnyopCall* call) {
  const anyop::cuda::NormCall c = {
      call,           args->rows, args->D, args->x, args->out, args->weight,       args->bias,
      args->residual, args->sum,  nullptr, nullptr, args->eps, args->weight_offset};
  return anyop::cuda::RunNorm<true, true>(c);
}
