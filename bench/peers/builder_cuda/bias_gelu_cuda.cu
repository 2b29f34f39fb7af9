// SPDX-License-Identifier: Apache-2.0
// The launch as an operator.
#include "bias_gelu_launch.h"
#include "peer/ops/bias_gelu_cuda.h"

int32_t peer_bias_gelu_cuda_cuda(const BiasGeluCudaArgs* args, AnyopCall* call) {
  const auto *x = (const float*)args->x->data, *bias = (const float*)args->bias->data;
  const cudaError_t error = LaunchBiasGelu(x, bias, (float*)args->out->data, args->rows, args->D,
                                           (cudaStream_t)call->stream);
  return error ? call->fail(call, kAnyopDeviceError, cudaGetErrorString(error)) : kAnyopOk;
}
