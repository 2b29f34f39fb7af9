// SPDX-License-Identifier: Apache-2.0
// OpenCL as an AnyopDevice, in a library of its own: libOpenCL is opened at its first use.
#include <cstdio>
#include <exception>

#include "fork.h"
#include "memory.h"
#include "programs.h"
#include "streams.h"

namespace anyop::opencl {
namespace {

thread_local int32_t current = 0;

// Nothing is thrown through the C ABI.
template <auto kFunction>
struct Guarded;
template <typename... Parameters, int32_t (*kFunction)(Parameters...)>
struct Guarded<kFunction> {
  static int32_t Call(Parameters... parameters) {
    try {
      return kFunction(parameters...);
    } catch (const std::exception& error) {
      return RefuseOnDevice(kAnyopOutOfMemory, "opencl: %s", error.what());
    }
  }
};

int32_t SetCurrent(int32_t device) {
  if (int32_t status = CheckDevice(device)) return status;
  current = device;
  return kAnyopOk;
}

int32_t Enter(int32_t device, AnyopDeviceScope* scope) {
  *scope = {nullptr, device != current, current};
  return scope->changed || device == 0 ? SetCurrent(device) : CheckDevice(device);
}

int32_t Leave(const AnyopDeviceScope* scope) {
  if (scope->changed) current = scope->reserved;
  return kAnyopOk;
}

int32_t Count(int32_t* count) {
  *count = 0;
  if (!Forked() && TheRuntime().lacks_all) return kAnyopOk;
  if (int32_t status = CheckDevice(0)) return status;
  *count = static_cast<int32_t>(TheRuntime().devices.size());
  return kAnyopOk;
}

int32_t GetCurrent(int32_t* device) {
  *device = current;
  return kAnyopOk;
}

int32_t Properties(int32_t index, AnyopDeviceProperties* properties) {
  Device* device;
  if (int32_t status = CheckDevice(index, &device)) return status;
  if (properties->size < sizeof *properties)
    return RefuseOnDevice(kAnyopValueError, "opencl: the struct of properties is too small");
  AnyopDeviceProperties found = {};
  found.size = properties->size;
  found.total_bytes = static_cast<int64_t>(device->total_bytes);
  found.compute_units = static_cast<int32_t>(device->units);
  std::sscanf(device->version.c_str(), "OpenCL %d.%d", &found.major, &found.minor);
  std::snprintf(found.name, sizeof found.name, "%s", device->name.c_str());
  *properties = found;
  return kAnyopOk;
}

#define ANYOP_GUARDED(function) Guarded<function>::Call

const AnyopDevice kDevice = {
    sizeof(AnyopDevice),
    ANYOP_DEVICE_ABI_VERSION,
    "opencl",
    ANYOP_DEVICE_TYPE_EXTENSION,
    0,
    ANYOP_GUARDED(Enter),
    ANYOP_GUARDED(Leave),
    LastDeviceError,
    nullptr,
    ANYOP_GUARDED(Count),
    ANYOP_GUARDED(GetCurrent),
    ANYOP_GUARDED(SetCurrent),
    ANYOP_GUARDED(Allocate),
    ANYOP_GUARDED(Free),
    ANYOP_GUARDED(AllocateOn),
    ANYOP_GUARDED(FreeOn),
    ANYOP_GUARDED(Copy),
    ANYOP_GUARDED(CopyOn),
    ANYOP_GUARDED(CreateStream),
    ANYOP_GUARDED(DestroyStream),
    ANYOP_GUARDED(SynchronizeStream),
    ANYOP_GUARDED(SynchronizeDevice),
    ANYOP_GUARDED(CreateEvent),
    ANYOP_GUARDED(DestroyEvent),
    ANYOP_GUARDED(RecordEvent),
    ANYOP_GUARDED(WaitEvent),
    ANYOP_GUARDED(SynchronizeEvent),
    ANYOP_GUARDED(ElapsedMs),
    ANYOP_GUARDED(Properties),
    ANYOP_GUARDED(MemoryInfo),
    ANYOP_GUARDED(AllocateHost),
    ANYOP_GUARDED(FreeHost),
    ANYOP_GUARDED(IsHost),
    ANYOP_GUARDED(DeviceOf),
    ANYOP_GUARDED(SetOn),
    ANYOP_GUARDED(CopyBetweenOn),
    ANYOP_GUARDED(CreateStreamWith),
    ANYOP_GUARDED(QueryStream),
    ANYOP_GUARDED(LaunchHost),
    ANYOP_GUARDED(CreateEventWith),
    ANYOP_GUARDED(QueryEvent),
    ANYOP_GUARDED(LoadImage),
    ANYOP_GUARDED(FindKernel),
    ANYOP_GUARDED(LaunchKernel),
};

}  // namespace
}  // namespace anyop::opencl

extern "C" __attribute__((visibility("default"))) const AnyopDevice* AnyopDeviceEntry(
    uint32_t abi_version) {
  return abi_version < ANYOP_DEVICE_ABI_VERSION ? nullptr : &anyop::opencl::kDevice;
}
