// SPDX-License-Identifier: Apache-2.0
// Pinned memory of the host, whose memory an address is, and what goes between devices.
#include "memory.h"
#include "status.h"

namespace anyop::cuda {
namespace {

int32_t Attributes(const void* memory, cudaPointerAttributes* attributes) {
  return Check(cudaPointerGetAttributes(attributes, memory), "asking whose memory it is");
}

int32_t CheckBytes(int64_t bytes) {
  if (bytes >= 0) return kAnyopOk;
  return RefuseOnDevice(kAnyopValueError, "a negative number of bytes was given");
}

}  // namespace

int32_t MemoryInfo(int32_t device, int64_t* free_bytes, int64_t* total_bytes) {
  size_t left = 0, all = 0;
  const int32_t status =
      On(device, "asking for free memory", [&] { return cudaMemGetInfo(&left, &all); });
  *free_bytes = static_cast<int64_t>(left);
  *total_bytes = static_cast<int64_t>(all);
  return status;
}

int32_t AllocateHost(int32_t device, int64_t bytes, void** memory) {
  *memory = nullptr;
  if (int32_t status = CheckBytes(bytes)) return status;
  if (bytes == 0) return kAnyopOk;
  return On(device, "allocating pinned memory", [&] {
    return cudaHostAlloc(memory, static_cast<size_t>(bytes), cudaHostAllocPortable);
  });
}

int32_t FreeHost(int32_t device, void* memory) {
  if (!memory) return kAnyopOk;
  return On(device, "freeing pinned memory", [&] { return cudaFreeHost(memory); });
}

int32_t IsHost(const void* memory, int32_t* yes) {
  *yes = 0;
  if (!memory) return kAnyopOk;
  cudaPointerAttributes attributes = {};
  if (int32_t status = Attributes(memory, &attributes)) return status;
  *yes = attributes.type == cudaMemoryTypeHost;
  return kAnyopOk;
}

int32_t DeviceOf(const void* memory, int32_t* device) {
  *device = -1;
  if (!memory) return kAnyopOk;
  cudaPointerAttributes attributes = {};
  if (int32_t status = Attributes(memory, &attributes)) return status;
  if (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged)
    *device = attributes.device;
  return kAnyopOk;
}

int32_t SetOn(int32_t device, void* stream, void* memory, int32_t value, int64_t bytes) {
  if (int32_t status = CheckBytes(bytes)) return status;
  if (bytes == 0) return kAnyopOk;
  return On(device, "filling memory", [&] {
    return cudaMemsetAsync(memory, value, static_cast<size_t>(bytes),
                           static_cast<cudaStream_t>(stream));
  });
}

int32_t CopyBetweenOn(int32_t device, void* stream, void* to, int32_t to_device, const void* from,
                      int32_t from_device, int64_t bytes) {
  if (int32_t status = CheckBytes(bytes)) return status;
  if (bytes == 0) return kAnyopOk;
  return On(device, "copying between devices", [&] {
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, static_cast<size_t>(bytes),
                               static_cast<cudaStream_t>(stream));
  });
}

}  // namespace anyop::cuda
