/* SPDX-License-Identifier: Apache-2.0 */
/* For CUDA kernels (.cu): starting them on the call's stream, and what launches are planned by. */
#ifndef ANYOP_CUDA_LAUNCH_H_
#define ANYOP_CUDA_LAUNCH_H_

#include <atomic>

#include "anyop/cuda/error.h"
#include "anyop/kernel.h"

namespace anyop::cuda {

// Of a file that is read once for all GPUs (arch = "80*"): it has nothing that Hopper brought, and
// so no wait for the kernel before.
#if ANYOP_READ_ONCE
constexpr bool kReadOnce = true;
#else
constexpr bool kReadOnce = false;
#endif

inline cudaStream_t StreamOf(const AnyopCall* call) {
  return static_cast<cudaStream_t>(call->stream);
}

// kAnyopOk, or the call's failure with CUDA's own text.
inline int32_t Check(AnyopCall* call, cudaError_t error, const char* doing) {
  if (__builtin_expect(error == cudaSuccess, 1)) return kAnyopOk;
  char text[512];
  WriteError(text, sizeof text, error, doing);
  return call->fail(
      call, error == cudaErrorMemoryAllocation ? kAnyopOutOfMemory : kAnyopDeviceError, text);
}

// Starts a kernel on the call's stream. Its arguments are of exactly the kernel's types.
struct Launch {
  dim3 grid, block;
  size_t shared_bytes = 0;
  bool overlaps = false;     // may start before the kernel before it ends (PDL), see WaitForWork
  int cluster = 1;           // blocks that share their memory (Hopper)
  bool cooperative = false;  // all blocks run at once, or none starts: they may meet

  template <typename... Arguments>
  cudaError_t Start(AnyopCall* call, void (*kernel)(Arguments...), Arguments... arguments) const {
    cudaLaunchAttribute attributes[kAttributes] = {};
    const cudaLaunchConfig_t config = Configure(call, attributes);
    return cudaLaunchKernelEx(&config, kernel, arguments...);
  }
  template <typename... Arguments>
  int32_t Run(AnyopCall* call, void (*kernel)(Arguments...), Arguments... arguments) const {
    return Check(call, Start(call, kernel, arguments...), "starting its kernel");
  }
  // So many clusters run at once on an idle device.
  template <typename... Arguments>
  int32_t CountClusters(AnyopCall* call, void (*kernel)(Arguments...), int* count) const {
    cudaLaunchAttribute attributes[kAttributes] = {};
    const cudaLaunchConfig_t config = Configure(call, attributes);
    return Check(call, cudaOccupancyMaxActiveClusters(count, kernel, &config),
                 "asking for its clusters");
  }

 private:
  static constexpr int kAttributes = 3;
  cudaLaunchConfig_t Configure(AnyopCall* call,
                               cudaLaunchAttribute (&attributes)[kAttributes]) const {
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = StreamOf(call);
    config.attrs = attributes;
    if (overlaps && !kReadOnce) {
      cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
      attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attribute.val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
      cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
      attribute.id = cudaLaunchAttributeClusterDimension;
      attribute.val.clusterDim.x = static_cast<unsigned>(cluster);
      attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    }
    if (cooperative) {
      cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
      attribute.id = cudaLaunchAttributeCooperative;
      attribute.val.cooperative = 1;
    }
    return config;
  }
};

// What launches are planned by; read once for each device. The call's device is current.
struct Limits {
  int multiprocessors, shared_bytes_of_block, shared_bytes, major;
};
inline int32_t ReadLimits(AnyopCall* call, Limits* limits) {
  constexpr int kMaxDevices = 64;
  static std::atomic<const Limits*> known[kMaxDevices];
  const int device = call->device_id;
  const bool kept = device >= 0 && device < kMaxDevices;
  if (const Limits* found = kept ? known[device].load(std::memory_order_acquire) : nullptr) {
    *limits = *found;
    return kAnyopOk;
  }
  const auto read = [&](int* value, cudaDeviceAttr attribute) {
    return Check(call, cudaDeviceGetAttribute(value, attribute, device), "asking for its limits");
  };
  if (int32_t status = read(&limits->multiprocessors, cudaDevAttrMultiProcessorCount))
    return status;
  if (int32_t status =
          read(&limits->shared_bytes_of_block, cudaDevAttrMaxSharedMemoryPerBlockOptin))
    return status;
  if (int32_t status = read(&limits->shared_bytes, cudaDevAttrMaxSharedMemoryPerMultiprocessor))
    return status;
  if (int32_t status = read(&limits->major, cudaDevAttrComputeCapabilityMajor)) return status;
  if (kept) known[device].store(new Limits(*limits), std::memory_order_release);
  return kAnyopOk;
}

// Lets a kernel have so much dynamic shared memory, always as much; asked for once on each device.
template <auto kKernel>
int32_t AllowShared(AnyopCall* call, int bytes) {
  static std::atomic<uint64_t> allowed{0};  // bit: a device below 64
  const uint64_t bit = call->device_id < 64 ? uint64_t{1} << call->device_id : 0;
  if (allowed.load(std::memory_order_relaxed) & bit) return kAnyopOk;
  const int32_t status =
      Check(call, cudaFuncSetAttribute(kKernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
            "asking for shared memory");
  if (status == kAnyopOk) allowed.fetch_or(bit, std::memory_order_relaxed);
  return status;
}

}  // namespace anyop::cuda

#endif  // ANYOP_CUDA_LAUNCH_H_
