// SPDX-License-Identifier: Apache-2.0
// CUDA as an AnyopDevice: streams, events, versions, and the table of all functions.
//
// The runtime is linked statically and works in the devices' primary contexts, which it shares with
// the frameworks: their streams, events and memory are good here. Nothing is called before the
// first tensor of a CUDA device comes, so a machine without a driver loads this library.
#include <cstdio>

#include "memory.h"
#include "status.h"

namespace anyop::cuda {
namespace {

cudaStream_t Stream(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t Event(void* event) { return static_cast<cudaEvent_t>(event); }

int32_t Versions(AnyopDeviceVersions* versions) {
  if (versions->size < sizeof *versions)
    return RefuseOnDevice(kAnyopValueError, "the struct of versions is smaller than any released");
  versions->runtime = CUDART_VERSION;
  versions->minimum_driver = CUDART_VERSION / 1000 * 1000;
  return Check(cudaDriverGetVersion(&versions->driver), "asking for the driver's version");
}

int32_t Count(int32_t* count) {
  *count = 0;
  const cudaError_t error = cudaGetDeviceCount(count);
  if (error != cudaErrorNoDevice) return Check(error, "counting devices");
  (void)cudaGetLastError();
  *count = 0;
  return kAnyopOk;
}

int32_t GetCurrent(int32_t* device) {
  return Check(cudaGetDevice(device), "asking for the device");
}
int32_t SetCurrent(int32_t device) { return Check(cudaSetDevice(device), "setting the device"); }

int32_t CreateStream(int32_t device, void** stream) {
  return On(device, "making a stream", [&] {
    return cudaStreamCreateWithFlags(reinterpret_cast<cudaStream_t*>(stream),
                                     cudaStreamNonBlocking);
  });
}
int32_t DestroyStream(int32_t device, void* stream) {
  if (!stream) return kAnyopOk;
  return On(device, "ending a stream", [&] { return cudaStreamDestroy(Stream(stream)); });
}
int32_t SynchronizeStream(int32_t device, void* stream) {
  return On(device, "waiting for a stream", [&] { return cudaStreamSynchronize(Stream(stream)); });
}
int32_t SynchronizeDevice(int32_t device) {
  return On(device, "waiting for the device", [] { return cudaDeviceSynchronize(); });
}

int32_t CreateEvent(int32_t device, void** event) {
  return On(device, "making an event",
            [&] { return cudaEventCreate(reinterpret_cast<cudaEvent_t*>(event)); });
}
int32_t DestroyEvent(int32_t device, void* event) {
  if (!event) return kAnyopOk;
  return On(device, "ending an event", [&] { return cudaEventDestroy(Event(event)); });
}
int32_t RecordEvent(int32_t device, void* event, void* stream) {
  return On(device, "recording an event",
            [&] { return cudaEventRecord(Event(event), Stream(stream)); });
}
int32_t WaitEvent(int32_t device, void* stream, void* event) {
  return On(device, "letting a stream wait",
            [&] { return cudaStreamWaitEvent(Stream(stream), Event(event), 0); });
}
int32_t SynchronizeEvent(int32_t device, void* event) {
  return On(device, "waiting for an event", [&] { return cudaEventSynchronize(Event(event)); });
}
int32_t ElapsedMs(int32_t device, void* begin, void* end, float* milliseconds) {
  return On(device, "reading the time between events",
            [&] { return cudaEventElapsedTime(milliseconds, Event(begin), Event(end)); });
}

int32_t Properties(int32_t device, AnyopDeviceProperties* properties) {
  if (properties->size < sizeof *properties)
    return RefuseOnDevice(kAnyopValueError,
                          "the struct of properties is smaller than any released");
  AnyopDeviceProperties found = {};
  found.size = properties->size;
  const int32_t status = On(device, "asking for the device's properties", [&] {
    cudaDeviceProp cuda;
    if (cudaError_t error = cudaGetDeviceProperties(&cuda, device)) return error;
    found.total_bytes = static_cast<int64_t>(cuda.totalGlobalMem);
    found.compute_units = cuda.multiProcessorCount;
    found.major = cuda.major;
    found.minor = cuda.minor;
    std::snprintf(found.name, sizeof found.name, "%.127s", cuda.name);
    return cudaDeviceGetStreamPriorityRange(&found.least_priority, &found.greatest_priority);
  });
  if (status == kAnyopOk) *properties = found;
  return status;
}

int32_t CreateStreamWith(int32_t device, int32_t priority, void** stream) {
  return On(device, "making a stream", [&] {
    return cudaStreamCreateWithPriority(reinterpret_cast<cudaStream_t*>(stream),
                                        cudaStreamNonBlocking, priority);
  });
}

// Of something that may not be ready yet, which is no error.
cudaError_t Ready(cudaError_t error, int32_t* done) {
  *done = error == cudaSuccess;
  if (error != cudaErrorNotReady) return error;
  (void)cudaGetLastError();
  return cudaSuccess;
}

int32_t QueryStream(int32_t device, void* stream, int32_t* done) {
  return On(device, "asking a stream",
            [&] { return Ready(cudaStreamQuery(Stream(stream)), done); });
}

int32_t LaunchHost(int32_t device, void* stream, void (*function)(void*), void* context) {
  if (!function) return RefuseOnDevice(kAnyopValueError, "launch_host without a function");
  return On(device, "putting a function into a stream",
            [&] { return cudaLaunchHostFunc(Stream(stream), function, context); });
}

int32_t CreateEventWith(int32_t device, uint32_t flags, void** event) {
  const unsigned kind = flags & kAnyopEventNoTiming ? cudaEventDisableTiming : cudaEventDefault;
  return On(device, "making an event",
            [&] { return cudaEventCreateWithFlags(reinterpret_cast<cudaEvent_t*>(event), kind); });
}

int32_t QueryEvent(int32_t device, void* event, int32_t* done) {
  return On(device, "asking an event", [&] { return Ready(cudaEventQuery(Event(event)), done); });
}

}  // namespace
}  // namespace anyop::cuda

extern "C" {
extern const AnyopDevice kAnyopCudaDevice;
const AnyopDevice kAnyopCudaDevice = {
    sizeof(AnyopDevice),
    ANYOP_DEVICE_ABI_VERSION,
    "cuda",
    2,
    0,
    anyop::cuda::Enter,
    anyop::cuda::Leave,
    anyop::LastDeviceError,
    anyop::cuda::Versions,
    anyop::cuda::Count,
    anyop::cuda::GetCurrent,
    anyop::cuda::SetCurrent,
    anyop::cuda::Allocate,
    anyop::cuda::Free,
    anyop::cuda::AllocateOn,
    anyop::cuda::FreeOn,
    anyop::cuda::Copy,
    anyop::cuda::CopyOn,
    anyop::cuda::CreateStream,
    anyop::cuda::DestroyStream,
    anyop::cuda::SynchronizeStream,
    anyop::cuda::SynchronizeDevice,
    anyop::cuda::CreateEvent,
    anyop::cuda::DestroyEvent,
    anyop::cuda::RecordEvent,
    anyop::cuda::WaitEvent,
    anyop::cuda::SynchronizeEvent,
    anyop::cuda::ElapsedMs,
    anyop::cuda::Properties,
    anyop::cuda::MemoryInfo,
    anyop::cuda::AllocateHost,
    anyop::cuda::FreeHost,
    anyop::cuda::IsHost,
    anyop::cuda::DeviceOf,
    anyop::cuda::SetOn,
    anyop::cuda::CopyBetweenOn,
    anyop::cuda::CreateStreamWith,
    anyop::cuda::QueryStream,
    anyop::cuda::LaunchHost,
    anyop::cuda::CreateEventWith,
    anyop::cuda::QueryEvent,
};
}
