// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention to pages of latent rows on CUDA.
#include "anyop/ops/mla_decode.h"
#include "mla_cuda.h"
#include "mla_view.h"

extern "C" int32_t anyop_mla_decode_cuda(const MlaDecodeArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  PagedView p = {};
  if (!ViewLatent(*args, &p)) return DeclineLatent(call);
  if (args->B == 0) return kAnyopOk;
  return AttendToLatent<false>(&p, AnyopDtypeOf(args->q), args->split_size, call);
}
