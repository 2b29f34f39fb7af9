// SPDX-License-Identifier: Apache-2.0
// Gradient of rms_norm_from_output on CUDA: see norm_from_output_rows.h.
#include "anyop/ops/rms_norm_from_output_backward.h"
#include "norm_from_output_rows.h"

extern "C" int32_t anyop_rms_norm_from_output_backward_cuda(
    const RmsNormFromOutputBackwardArgs* args, AnyopCall* call) {
  return anyop::cuda::RunFromOutput<false>(args, call, nullptr, nullptr);
}
