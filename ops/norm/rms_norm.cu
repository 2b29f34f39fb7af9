// SPDX-License-Identifier: Apache-2.0
// rms_norm, native_rms_norm and rms_norm_from_output, which are one on CUDA: see norm_rows.h.
#include "anyop/ops/native_rms_norm.h"
#include "anyop/ops/rms_norm.h"
#include "anyop/ops/rms_norm_from_output.h"
#include "norm_rows.h"

namespace {

template <typename Args>
int32_t Run(const Args* args, AnyopCall* call, const AnyopTensor* rstd) {
  const anyop::cuda::NormCall c = {
      call,    args->rows, args->D, args->x, args->out, args->weight,       nullptr,
      nullptr, nullptr,    nullptr, rstd,    args->eps, args->weight_offset};
  return anyop::cuda::RunNorm<false, false>(c);
}

}  // namespace

extern "C" int32_t anyop_rms_norm_cuda(const RmsNormArgs* args, AnyopCall* call) {
  return Run(args, call, nullptr);
}
extern "C" int32_t anyop_native_rms_norm_cuda(const NativeRmsNormArgs* args, AnyopCall* call) {
  return Run(args, call, args->rstd);
}
extern "C" int32_t anyop_rms_norm_from_output_cuda(const RmsNormFromOutputArgs* args,
                                                   AnyopCall* call) {
  return Run(args, call, args->rstd);
}
