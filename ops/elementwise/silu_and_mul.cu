// SPDX-License-Identifier: Apache-2.0
// silu_and_mul on CUDA: both halves of a row are read once, in float32 (float64).
#include "activations_cuda.h"
#include "anyop/ops/silu_and_mul.h"

extern "C" int32_t anyop_silu_and_mul_cuda(const SiluAndMulArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return RunTimes<SiluForm>(call, args->x, args->out);
}
