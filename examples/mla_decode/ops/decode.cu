// SPDX-License-Identifier: Apache-2.0
// decode on CUDA: partial_mma.h and partial_cuda.h, over the tokens of pages.
//
// The lengths and pages are on the device: one that is outside makes NaN of what it concerns, and
// nothing outside is read.
#include "mla/ops/decode.h"
#include "partial_run.h"

extern "C" int32_t mla_decode_cuda(const DecodeArgs* args, AnyopCall* call) {
  return anyop::cuda::RunParts(*args, call, anyop::mla::PagesOf(*args));
}
