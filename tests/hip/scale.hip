// SPDX-License-Identifier: Apache-2.0
// scale on HIP: one thread an element, 8 bytes moved for each; nothing is accumulated.
#include <hip/hip_runtime.h>

#include "hipside/ops/scale.h"

namespace {

constexpr int kThreads = 256;

__global__ void Scale(const float* x, float factor, int64_t count, float* out) {
  const int64_t i = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count) out[i] = factor * x[i];
}

}  // namespace

extern "C" int32_t hipside_scale_hip(const ScaleArgs* args, AnyopCall* call) {
  const int64_t count = args->rows, blocks = (count + kThreads - 1) / kThreads;
  if (count == 0) return kAnyopOk;
  if (blocks > INT32_MAX) return call->fail(call, kAnyopValueError, "x has too many elements");
  Scale<<<dim3(blocks), dim3(kThreads), 0, static_cast<hipStream_t>(call->stream)>>>(
      static_cast<const float*>(args->x->data), static_cast<float>(args->factor), count,
      static_cast<float*>(args->out->data));
  const hipError_t error = hipGetLastError();
  return error == hipSuccess ? kAnyopOk
                             : call->fail(call, kAnyopDeviceError, hipGetErrorString(error));
}
