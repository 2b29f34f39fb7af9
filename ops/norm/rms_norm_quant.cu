// SPDX-License-Identifier: Apache-2.0
// rms_norm_quant on CUDA: see norm_quant_rows.h.
#include "anyop/ops/rms_norm_quant.h"
#include "norm_quant_rows.h"

extern "C" int32_t anyop_rms_norm_quant_cuda(const RmsNormQuantArgs* args, AnyopCall* call) {
  return anyop::cuda::RunNormQuant<false>(args, call, nullptr, nullptr);
}
