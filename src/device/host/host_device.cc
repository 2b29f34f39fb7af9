// SPDX-License-Identifier: Apache-2.0
// The host as an AnyopDevice: two devices in the host's memory, whose streams are threads. What a
// program forgets to wait for, or puts on the wrong device, shows here, without an accelerator.
#include <cstdio>
#include <thread>

#include "anyop/device.h"
#include "fork.h"
#include "host_event.h"
#include "host_memory.h"
#include "host_stream.h"
#include "last_error.h"

namespace anyop::host {
namespace {

thread_local int32_t current = 0;

int32_t Enter(int32_t device, AnyopDeviceScope* scope) {
  *scope = {};
  if (__builtin_expect(device == current && !Forked(), 1)) return kAnyopOk;
  if (int32_t status = CheckIndex(device)) return status;
  *scope = {nullptr, 1, current};
  current = device;
  return kAnyopOk;
}

int32_t Leave(const AnyopDeviceScope* scope) {
  if (scope->changed) current = scope->reserved;
  return kAnyopOk;
}

int32_t Versions(AnyopDeviceVersions* versions) {
  if (versions->size < sizeof *versions)
    return RefuseOnDevice(kAnyopValueError, "host: the struct of versions is too small");
  versions->driver = versions->runtime = versions->minimum_driver = 0;
  return kAnyopOk;
}

int32_t Count(int32_t* count) {
  *count = kDevices;
  return kAnyopOk;
}

int32_t GetCurrent(int32_t* device) {
  *device = current;
  return kAnyopOk;
}

int32_t SetCurrent(int32_t device) {
  if (int32_t status = CheckIndex(device)) return status;
  current = device;
  return kAnyopOk;
}

int32_t Properties(int32_t device, AnyopDeviceProperties* properties) {
  if (properties->size < sizeof *properties)
    return RefuseOnDevice(kAnyopValueError, "host: the struct of properties is too small");
  int64_t free_bytes;
  AnyopDeviceProperties found = {};
  if (int32_t status = MemoryInfo(device, &free_bytes, &found.total_bytes)) return status;
  found.size = properties->size;
  found.flags = kAnyopDeviceHostAccessible;
  found.compute_units = static_cast<int32_t>(std::thread::hardware_concurrency());
  found.major = 1;
  std::snprintf(found.name, sizeof found.name, "anyop host device %d", device);
  *properties = found;
  return kAnyopOk;
}

}  // namespace
}  // namespace anyop::host

extern "C" {
extern const AnyopDevice kAnyopHostDevice;
const AnyopDevice kAnyopHostDevice = {
    sizeof(AnyopDevice),
    ANYOP_DEVICE_ABI_VERSION,
    "host",
    ANYOP_DEVICE_TYPE_EXTENSION,
    0,
    anyop::host::Enter,
    anyop::host::Leave,
    anyop::LastDeviceError,
    anyop::host::Versions,
    anyop::host::Count,
    anyop::host::GetCurrent,
    anyop::host::SetCurrent,
    anyop::host::Allocate,
    anyop::host::Free,
    anyop::host::AllocateOn,
    anyop::host::FreeOn,
    anyop::host::Copy,
    anyop::host::CopyOn,
    anyop::host::CreateStream,
    anyop::host::DestroyStream,
    anyop::host::SynchronizeStream,
    anyop::host::SynchronizeDevice,
    anyop::host::CreateEvent,
    anyop::host::DestroyEvent,
    anyop::host::RecordEvent,
    anyop::host::WaitEvent,
    anyop::host::SynchronizeEvent,
    anyop::host::ElapsedMs,
    anyop::host::Properties,
    anyop::host::MemoryInfo,
    anyop::host::AllocateHost,
    anyop::host::FreeHost,
    anyop::host::IsHost,
    anyop::host::DeviceOf,
    anyop::host::SetOn,
    anyop::host::CopyBetweenOn,
    anyop::host::CreateStreamWith,
    anyop::host::QueryStream,
    anyop::host::LaunchHost,
    anyop::host::CreateEventWith,
    anyop::host::QueryEvent,
};
}
