/* SPDX-License-Identifier: Apache-2.0 */
/* The text of a CUDA error, for kernels (.cu) and for src/device/cuda; C++. */
#ifndef ANYOP_CUDA_ERROR_H_
#define ANYOP_CUDA_ERROR_H_

#include <cuda_runtime_api.h>

#include <cstdio>

namespace anyop::cuda {

// The oldest driver that the runtime of this build works with, as NVIDIA counts its releases.
constexpr int kMinimumDriver = CUDART_VERSION >= 14000   ? 0  // not known here
                               : CUDART_VERSION >= 13000 ? 580
                               : CUDART_VERSION >= 12000 ? 525
                                                         : 450;

// Errors after which every later call of the process fails, until it ends.
inline bool IsSticky(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorIllegalInstruction:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorHardwareStackError:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorContextIsDestroyed:
      return true;
    default:
      return false;
  }
}

// No driver, or one that is too old.
inline void WriteDriverError(char* text, size_t size) {
  int found = 0;
  if (cudaDriverGetVersion(&found) != cudaSuccess) found = 0;
  const int n = std::snprintf(text, size, "CUDA %d.%d needs NVIDIA's driver %d or newer",
                              CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, kMinimumDriver);
  if (n < 0 || static_cast<size_t>(n) >= size) return;
  if (found == 0) {
    std::snprintf(text + n, size - n, ", and this machine has none");
  } else {
    std::snprintf(text + n, size - n, "; the one of this machine is for CUDA %d.%d", found / 1000,
                  found % 1000 / 10);
  }
}

// Writes what happened to text, and forgets the error, so that no later call reports it again.
// doing: "starting its kernel", "allocating 64 bytes".
inline void WriteError(char* text, size_t size, cudaError_t error, const char* doing) {
  (void)cudaGetLastError();
  if (error == cudaErrorInsufficientDriver || error == cudaErrorStubLibrary) {
    WriteDriverError(text, size);
    return;
  }
  std::snprintf(text, size, "CUDA says \"%s\" (%s) while %s%s", cudaGetErrorString(error),
                cudaGetErrorName(error), doing,
                IsSticky(error) ? "; work started earlier failed, and this process can use the "
                                  "device no more"
                                : "");
}

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_ERROR_H_
