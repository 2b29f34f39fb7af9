// SPDX-License-Identifier: Apache-2.0
// Stream-ordered memory comes from a pool of our own for each device: changing the default one's
// settings would change them for the frameworks of the process.
#include "memory.h"

#include <atomic>
#include <mutex>

#include "status.h"

namespace anyop::cuda {
namespace {

constexpr int kMaxDevices = 64;
constexpr uint64_t kKeptBytes = uint64_t{64} << 20;  // not given back when a stream is synchronised

std::atomic<cudaMemPool_t> pools[kMaxDevices];
std::mutex making;

cudaError_t MakePool(int device, cudaMemPool_t* pool) {
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device;
  // While any stream of the process is captured, this thread may only do so when it says that it
  // knows: the pool is no part of the graph.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  if (cudaError_t error = cudaThreadExchangeStreamCaptureMode(&mode)) return error;
  cudaError_t error = cudaMemPoolCreate(pool, &properties);
  uint64_t kept = kKeptBytes;
  if (!error) error = cudaMemPoolSetAttribute(*pool, cudaMemPoolAttrReleaseThreshold, &kept);
  const cudaError_t back = cudaThreadExchangeStreamCaptureMode(&mode);
  return error ? error : back;
}

cudaError_t PoolOf(int device, cudaMemPool_t* pool) {
  if (device >= kMaxDevices) return cudaErrorInvalidDevice;
  *pool = pools[device].load(std::memory_order_acquire);
  if (*pool) return cudaSuccess;
  std::lock_guard<std::mutex> lock(making);
  if ((*pool = pools[device].load())) return cudaSuccess;
  if (cudaError_t error = MakePool(device, pool)) return error;
  pools[device].store(*pool, std::memory_order_release);
  return cudaSuccess;
}

constexpr cudaMemcpyKind kKinds[] = {cudaMemcpyDefault, cudaMemcpyHostToDevice,
                                     cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice};

bool IsKind(int32_t kind) { return kind >= kAnyopHostToDevice && kind <= kAnyopDeviceToDevice; }

int32_t RefuseCopy(int64_t bytes, int32_t kind) {
  return RefuseOnDevice(kAnyopValueError,
                        "a copy of %lld bytes of kind %d, expected 0 or more and 1 to 3",
                        static_cast<long long>(bytes), kind);
}

}  // namespace

int32_t Allocate(int32_t device, int64_t bytes, void** memory) {
  *memory = nullptr;
  if (bytes < 0)
    return RefuseOnDevice(kAnyopValueError, "a negative number of bytes was asked for");
  if (bytes == 0) return kAnyopOk;
  return On(device, "allocating memory",
            [&] { return cudaMalloc(memory, static_cast<size_t>(bytes)); });
}

int32_t Free(int32_t device, void* memory) {
  if (!memory) return kAnyopOk;
  return On(device, "freeing memory", [&] { return cudaFree(memory); });
}

int32_t AllocateOn(int32_t device, void* stream, int64_t bytes, void** memory) {
  *memory = nullptr;
  if (bytes < 0)
    return RefuseOnDevice(kAnyopValueError, "a negative number of bytes was asked for");
  if (bytes == 0) return kAnyopOk;
  return On(device, "allocating memory on a stream", [&] {
    cudaMemPool_t pool;
    if (cudaError_t error = PoolOf(device, &pool)) return error;
    return cudaMallocFromPoolAsync(memory, static_cast<size_t>(bytes), pool,
                                   static_cast<cudaStream_t>(stream));
  });
}

int32_t FreeOn(int32_t device, void* stream, void* memory) {
  if (!memory) return kAnyopOk;
  return On(device, "freeing memory on a stream",
            [&] { return cudaFreeAsync(memory, static_cast<cudaStream_t>(stream)); });
}

int32_t Copy(int32_t device, void* to, const void* from, int64_t bytes, int32_t kind) {
  if (bytes < 0 || !IsKind(kind)) return RefuseCopy(bytes, kind);
  return On(device, "copying", [&] {
    // From device to device cudaMemcpy would not wait.
    const auto size = static_cast<size_t>(bytes);
    if (cudaError_t error = cudaMemcpy(to, from, size, kKinds[kind])) return error;
    return kind == kAnyopDeviceToDevice ? cudaStreamSynchronize(nullptr) : cudaSuccess;
  });
}

int32_t CopyOn(int32_t device, void* stream, void* to, const void* from, int64_t bytes,
               int32_t kind) {
  if (bytes < 0 || !IsKind(kind)) return RefuseCopy(bytes, kind);
  return On(device, "copying on a stream", [&] {
    return cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), kKinds[kind],
                           static_cast<cudaStream_t>(stream));
  });
}

}  // namespace anyop::cuda
