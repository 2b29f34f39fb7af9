// SPDX-License-Identifier: Apache-2.0
// rms_norm on CUDA: see norm_rows.h.
#include "anyop/ops/rms_norm.h"
#include "norm_rows.h"

extern "C" int32_t anyop_rms_norm_cuda(const RmsNormArgs* args, AnyopCall* call) {
  const anyop::cuda::NormCall c = {
      call,    args->rows, args->D, args->x, args->out, args->weight,       nullptr,
      nullptr, nullptr,    nullptr, nullptr, args->eps, args->weight_offset};
  return anyop::cuda::RunNorm<false, false>(c);
}
