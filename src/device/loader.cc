// SPDX-License-Identifier: Apache-2.0
// A table of devices that only grows. What is compiled in is there from the start, and costs
// nothing until a tensor of it comes.
#include "loader.h"

#include <atomic>
#include <mutex>

#ifdef ANYOP_WITH_CUDA
extern "C" const AnyopDevice kAnyopCudaDevice;  // src/device/cuda
#endif

namespace anyop {
namespace {

constexpr int32_t kMaxDeviceTypes = 32;

std::atomic<const AnyopDevice*> devices[kMaxDeviceTypes] = {
    {nullptr},
    {nullptr},
#ifdef ANYOP_WITH_CUDA
    {&kAnyopCudaDevice},
#endif
};
std::mutex registration;

}  // namespace

const AnyopDevice* FindDevice(int32_t device_type) {
  if (device_type < 0 || device_type >= kMaxDeviceTypes) return nullptr;
  return devices[device_type].load(std::memory_order_acquire);
}

int32_t RegisterDevice(const AnyopDevice* device, std::string* error) {
  constexpr uint32_t kSmallest = offsetof(AnyopDevice, versions);
  if (!device || device->size < kSmallest || !device->name || !device->enter || !device->leave ||
      !device->last_error) {
    *error =
        "the description of the device is missing, or lacks its name, enter, leave or last_error";
    return kAnyopValueError;
  }
  const std::string name = std::string("device ") + device->name;
  if (device->abi_version == 0 || device->abi_version > ANYOP_DEVICE_ABI_VERSION) {
    *error = name + " has ABI version " + std::to_string(device->abi_version) +
             ", this core reads 1 to " + std::to_string(ANYOP_DEVICE_ABI_VERSION);
    return kAnyopValueError;
  }
  if (device->device_type <= 1 || device->device_type >= kMaxDeviceTypes) {
    *error = name + " has device type " + std::to_string(device->device_type) + ", expected 2 to " +
             std::to_string(kMaxDeviceTypes - 1);
    return kAnyopValueError;
  }
  std::lock_guard<std::mutex> lock(registration);
  std::atomic<const AnyopDevice*>& place = devices[device->device_type];
  const AnyopDevice* there = place.load();
  if (there && there != device) {
    *error = name + " has device type " + std::to_string(device->device_type) + ", which device " +
             there->name + " has already";
    return kAnyopValueError;
  }
  place.store(device, std::memory_order_release);
  return kAnyopOk;
}

}  // namespace anyop
