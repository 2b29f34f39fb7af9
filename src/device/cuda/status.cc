// SPDX-License-Identifier: Apache-2.0
// CUDA's errors as texts of the thread's last failure.
#include "status.h"

namespace anyop::cuda {

int32_t Check(cudaError_t error, const char* doing) {
  if (__builtin_expect(error == cudaSuccess, 1)) return kAnyopOk;
  char text[512];
  WriteError(text, sizeof text, error, doing);
  return RefuseOnDevice(error == cudaErrorMemoryAllocation ? kAnyopOutOfMemory : kAnyopDeviceError,
                        "%s", text);
}

}  // namespace anyop::cuda
