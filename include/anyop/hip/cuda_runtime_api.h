/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels use of CUDA's runtime, by HIP's: with this folder in front clang takes .cu files. */
#ifndef ANYOP_HIP_CUDA_RUNTIME_API_H_
#define ANYOP_HIP_CUDA_RUNTIME_API_H_

#include <hip/hip_runtime.h>

#include "lanes.h"

#define __grid_constant__
// HIP's counts the commas of templates; its second number is of another kind than CUDA's blocks.
#undef __launch_bounds__
#define __launch_bounds__(threads, ...) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define CUDART_VERSION 12000  // whose names these are

// ---- errors ----

using cudaError_t = hipError_t;
constexpr cudaError_t cudaSuccess = hipSuccess, cudaErrorMemoryAllocation = hipErrorOutOfMemory,
                      cudaErrorInsufficientDriver = hipErrorInsufficientDriver,
                      cudaErrorIllegalAddress = hipErrorIllegalAddress,
                      cudaErrorLaunchFailure = hipErrorLaunchFailure,
                      cudaErrorLaunchTimeout = hipErrorLaunchTimeOut,
                      cudaErrorAssert = hipErrorAssert,
                      cudaErrorECCUncorrectable = hipErrorECCNotCorrectable,
                      cudaErrorContextIsDestroyed = hipErrorContextIsDestroyed,
                      cudaErrorCooperativeLaunchTooLarge = hipErrorCooperativeLaunchTooLarge,
                      cudaErrorNotSupported = hipErrorNotSupported;
// HIP has none of these.
constexpr auto cudaErrorStubLibrary = static_cast<cudaError_t>(34),
               cudaErrorHardwareStackError = static_cast<cudaError_t>(714),
               cudaErrorIllegalInstruction = static_cast<cudaError_t>(715),
               cudaErrorMisalignedAddress = static_cast<cudaError_t>(716),
               cudaErrorInvalidAddressSpace = static_cast<cudaError_t>(717),
               cudaErrorInvalidPc = static_cast<cudaError_t>(718);
inline cudaError_t cudaGetLastError() { return hipGetLastError(); }
inline const char* cudaGetErrorString(cudaError_t error) { return hipGetErrorString(error); }
inline const char* cudaGetErrorName(cudaError_t error) { return hipGetErrorName(error); }
inline cudaError_t cudaDriverGetVersion(int* version) { return hipDriverGetVersion(version); }

// ---- devices ----

enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount,
  cudaDevAttrMaxSharedMemoryPerBlockOptin,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor,
  cudaDevAttrComputeCapabilityMajor,
  cudaDevAttrComputeCapabilityMinor,
};
// What no GPU of AMD's has is chosen by capability 9.0: these are of 8.0, whatever HIP says.
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      return hipDeviceGetAttribute(value, hipDeviceAttributeMultiprocessorCount, device);
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return hipDeviceGetAttribute(value, hipDeviceAttributeMaxSharedMemoryPerBlock, device);
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return hipDeviceGetAttribute(value, hipDeviceAttributeMaxSharedMemoryPerMultiprocessor,
                                   device);
    default:
      *value = attribute == cudaDevAttrComputeCapabilityMajor ? 8 : 0;
      return hipSuccess;
  }
}

// ---- memory ----

using cudaStream_t = hipStream_t;
inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return hipMemsetAsync(to, value, bytes, stream);
}
enum cudaMemcpyKind { cudaMemcpyDeviceToDevice = 3 };
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                                   cudaStream_t stream) {
  return hipMemcpyAsync(to, from, bytes, hipMemcpyDeviceToDevice, stream);
}
using cudaStreamCaptureMode = hipStreamCaptureMode;
constexpr cudaStreamCaptureMode cudaStreamCaptureModeRelaxed = hipStreamCaptureModeRelaxed;
inline cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return hipThreadExchangeStreamCaptureMode(mode);
}

// ---- launches ----

enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
template <typename Kernel>
cudaError_t cudaFuncSetAttribute(Kernel* kernel, cudaFuncAttribute, int bytes) {
  return hipFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             hipFuncAttributeMaxDynamicSharedMemorySize, bytes);
}
#include "launch_config.h"
// That a kernel may start early is dropped: no kernel waits for the one before it here.
template <typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Arguments...),
                               Arguments... arguments) {
  bool at_once = false;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id == cudaLaunchAttributeClusterDimension) return hipErrorNotSupported;
    at_once |= config->attrs[i].id == cudaLaunchAttributeCooperative;
  }
  void* places[] = {&arguments..., nullptr};
  const auto* function = reinterpret_cast<const void*>(kernel);
  const auto bytes = static_cast<unsigned>(config->dynamicSmemBytes);
  return at_once ? hipLaunchCooperativeKernel(function, config->gridDim, config->blockDim, places,
                                              bytes, config->stream)
                 : hipLaunchKernel(function, config->gridDim, config->blockDim, places, bytes,
                                   config->stream);
}
template <typename Kernel>
cudaError_t cudaOccupancyMaxActiveClusters(int* count, Kernel*, const cudaLaunchConfig_t*) {
  *count = 0;  // there are none
  return hipSuccess;
}

#endif  // ANYOP_HIP_CUDA_RUNTIME_API_H_
