// SPDX-License-Identifier: Apache-2.0
// fused_add_rms_norm_quant on CUDA: see norm_quant_rows.h.
#include "anyop/ops/fused_add_rms_norm_quant.h"
#include "norm_quant_rows.h"

extern "C" int32_t anyop_fused_add_rms_norm_quant_cuda(const FusedAddRmsNormQuantArgs* args,
                                                       AnyopCall* call) {
  return anyop::cuda::RunNormQuant<true>(args, call, args->residual, args->sum);
}
