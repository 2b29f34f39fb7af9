// SPDX-License-Identifier: Apache-2.0
// silu on CUDA: one read and one write an element, in float32 (float64).
#include "activations_cuda.h"
#include "anyop/ops/silu.h"

extern "C" int32_t anyop_silu_cuda(const SiluArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return RunFloatMap(call, ValueOf<SiluForm>(), {args->x}, args->out);
}
