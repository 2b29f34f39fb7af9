// SPDX-License-Identifier: Apache-2.0
// cast on CUDA: see cast_cuda.h.
#include "anyop/ops/cast.h"
#include "cast_cuda.h"

extern "C" int32_t anyop_cast_cuda(const CastArgs* args, AnyopCall* call) {
  return anyop::cuda::RunCast(call, args->x, args->out);
}
