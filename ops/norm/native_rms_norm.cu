// SPDX-License-Identifier: Apache-2.0
// native_rms_norm on CUDA: see norm_rows.h.
#include "anyop/ops/native_rms_norm.h"
#include "norm_rows.h"

extern "C" int32_t anyop_native_rms_norm_cuda(const NativeRmsNormArgs* args, AnyopCall* call) {
  const anyop::cuda::NormCall c = {
      call,    args->rows, args->D, args->x,    args->out, args->weight,       nullptr,
      nullptr, nullptr,    nullptr, args->rstd, args->eps, args->weight_offset};
  return anyop::cuda::RunNorm<false, false>(c);
}
