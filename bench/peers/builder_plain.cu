// SPDX-License-Identifier: Apache-2.0
// The same launch behind a plain C function: what nvcc alone takes.
#include "builder_cuda/bias_gelu_launch.h"

extern "C" int BiasGeluPlain(const float* x, const float* bias, float* out, int64_t rows, int64_t D,
                             void* stream) {
  return LaunchBiasGelu(x, bias, out, rows, D, (cudaStream_t)stream);
}
