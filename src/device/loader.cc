// SPDX-License-Identifier: Apache-2.0
// Tables of devices that only grow. What is compiled in is there from the start, and costs nothing
// until it is used.
#include "loader.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cctype>
#include <cstring>
#include <mutex>
#include <vector>

#include "anyop/library_file.h"
#include "by_name.h"

extern "C" const AnyopDevice kAnyopHostDevice;  // src/device/host
#ifdef ANYOP_WITH_CUDA
extern "C" const AnyopDevice kAnyopCudaDevice;  // src/device/cuda
#endif

namespace anyop {
namespace {

constexpr int32_t kMaxDeviceTypes = 32;
constexpr size_t kMaxName = 63;

std::atomic<const AnyopDevice*> devices[kMaxDeviceTypes] = {
    {nullptr},
    {nullptr},
#ifdef ANYOP_WITH_CUDA
    {&kAnyopCudaDevice},
#endif
};
std::mutex registration;

// All of them; under the lock.
std::vector<const AnyopDevice*>& Named() {
  static auto* named = new std::vector<const AnyopDevice*>{
      &kAnyopHostDevice,
#ifdef ANYOP_WITH_CUDA
      &kAnyopCudaDevice,
#endif
  };
  return *named;
}

int32_t Say(std::string* error, std::string text) {
  *error = std::move(text);
  return kAnyopValueError;
}

bool IsName(const char* name) {
  const size_t length = strnlen(name, kMaxName + 1);
  for (size_t i = 0; i < length; ++i) {
    const auto letter = static_cast<unsigned char>(name[i]);
    if (letter > 127 || !(std::isalnum(letter) || std::strchr("_-.", letter))) return false;
  }
  return length > 0 && length <= kMaxName;
}

// What can be said of a table without calling it.
int32_t CheckTable(const AnyopDevice* device, std::string* error) {
  constexpr uint32_t kSmallest = offsetof(AnyopDevice, versions);
  if (!device) return Say(error, "the description of the device is missing");
  if (device->size < kSmallest)
    return Say(error, "the description of the device has " + std::to_string(device->size) +
                          " bytes, expected " + std::to_string(kSmallest) + " or more");
  if (!device->name || !IsName(device->name))
    return Say(error,
               "the description of the device has no name of 1 to 63 letters, digits, "
               "'_', '-' and '.'");
  const std::string name = std::string("device ") + device->name;
  if (device->abi_version == 0 || device->abi_version > ANYOP_DEVICE_ABI_VERSION)
    return Say(error, name + " has ABI version " + std::to_string(device->abi_version) +
                          ", this core reads 1 to " + std::to_string(ANYOP_DEVICE_ABI_VERSION));
  if (!device->enter || !device->leave || !device->last_error)
    return Say(error, name + " lacks " +
                          (!device->enter   ? "enter"
                           : !device->leave ? "leave"
                                            : "last_error"));
  if (device->device_type <= 1 || device->device_type >= kMaxDeviceTypes)
    return Say(error, name + " has device type " + std::to_string(device->device_type) +
                          ", expected 2 to " + std::to_string(kMaxDeviceTypes - 1));
  return kAnyopOk;
}

int32_t CheckTypeIsFree(const AnyopDevice* device, std::string* error) {
  const AnyopDevice* there = devices[device->device_type].load();
  if (!there || there == device) return kAnyopOk;
  return Say(error, std::string("device ") + device->name + " has device type " +
                        std::to_string(device->device_type) + ", which device " + there->name +
                        " has already");
}

const AnyopDevice* FindNamed(const char* name) {
  for (const AnyopDevice* device : Named()) {
    if (!std::strcmp(device->name, name)) return device;
  }
  return nullptr;
}

}  // namespace

const AnyopDevice* FindDevice(int32_t device_type) {
  if (device_type < 0 || device_type >= kMaxDeviceTypes) return nullptr;
  return devices[device_type].load(std::memory_order_acquire);
}

namespace {

const AnyopDevice* FindRegistered(const char* name) {
  std::lock_guard<std::mutex> lock(registration);
  return FindNamed(name);
}

// The plugin of this name that came with anyop, "" when none did: libanyop_opencl.so.
std::string OwnPlugin(const char* name) {
  Dl_info here;
  if (!dladdr(reinterpret_cast<const void*>(&OwnPlugin), &here) || !here.dli_fname) return "";
  std::string path = here.dli_fname;
  path = path.substr(0, path.rfind('/') + 1) + "libanyop_" + name + ".so";
  return access(path.c_str(), R_OK) == 0 ? path : "";
}

// A row of the plugin cuda_like; kAnyopNotImplemented: it has none of this name, and *error lists
// those it has.
int32_t FindRow(const char* name, const AnyopDevice** device, std::string* error) {
  const std::string path = OwnPlugin("cuda_like");
  if (path.empty()) return kAnyopNotImplemented;
  char text[1024] = "";
  void* library = AnyopOpenLibraryFile(path.c_str(), RTLD_NOW | RTLD_LOCAL, text, sizeof text);
  auto by_name =
      library ? reinterpret_cast<DeviceByName>(dlsym(library, "AnyopDeviceByName")) : nullptr;
  if (!by_name) return Say(error, path + (library ? " is another version's" : text));
  const int32_t status = by_name(ANYOP_DEVICE_ABI_VERSION, name, device, text, sizeof text);
  *error = text;
  return status ? status : RegisterDevice(*device, error);
}

}  // namespace

const AnyopDevice* FindDeviceByName(const char* name, std::string* error) {
  std::string rows;
  if (name && IsName(name)) {
    if (const AnyopDevice* found = FindRegistered(name)) return found;
    const std::string path = OwnPlugin(name);
    const AnyopDevice* found = nullptr;
    if (!path.empty() && strcmp(name, "cuda_like") != 0)
      return LoadDevice(path.c_str(), &found, error) ? nullptr : found;
    const int32_t status = FindRow(name, &found, &rows);
    if (status == kAnyopOk) return found;
    if (status != kAnyopNotImplemented) return *error = rows, nullptr;
  }
  std::lock_guard<std::mutex> lock(registration);
  *error = std::string("there is no device '") + (name ? name : "") + "'; there are";
  for (const AnyopDevice* device : Named())
    *error += std::string(device == Named().front() ? " " : ", ") + device->name;
  if (!rows.empty()) *error += ", and by the plugin cuda_like " + rows;
  return nullptr;
}

int32_t RegisterDevice(const AnyopDevice* device, std::string* error) {
  if (int32_t status = CheckTable(device, error)) return status;
  std::lock_guard<std::mutex> lock(registration);
  const AnyopDevice* there = FindNamed(device->name);
  if (there == device) return kAnyopOk;
  if (there) return Say(error, std::string("there is another device ") + device->name + " already");
  if (device->device_type != ANYOP_DEVICE_TYPE_EXTENSION) {
    if (int32_t status = CheckTypeIsFree(device, error)) return status;
    devices[device->device_type].store(device, std::memory_order_release);
  }
  Named().push_back(device);
  return kAnyopOk;
}

int32_t UseDevice(const AnyopDevice* device, std::string* error) {
  std::lock_guard<std::mutex> lock(registration);
  bool known = false;
  for (const AnyopDevice* named : Named()) known = known || named == device;
  if (!known) return Say(error, "the device to use was not registered");
  if (int32_t status = CheckTypeIsFree(device, error)) return status;
  devices[device->device_type].store(device, std::memory_order_release);
  return kAnyopOk;
}

int32_t LoadDevice(const char* path, const AnyopDevice** device, std::string* error) {
  if (!path || !*path) return Say(error, "the path of the device's library is missing");
  char problem[1024];
  void* library = AnyopOpenLibraryFile(path, RTLD_NOW | RTLD_LOCAL, problem, sizeof problem);
  if (!library) return Say(error, problem);
  auto entry = reinterpret_cast<AnyopDeviceFunction>(dlsym(library, "AnyopDeviceEntry"));
  if (!entry)
    return Say(error, std::string(path) + " is no device: it exports no AnyopDeviceEntry");
  const AnyopDevice* found = entry(ANYOP_DEVICE_ABI_VERSION);
  if (!found)
    return Say(error, std::string(path) + " has no device for ABI version " +
                          std::to_string(ANYOP_DEVICE_ABI_VERSION));
  if (int32_t status = RegisterDevice(found, error)) {
    *error = std::string(path) + ": " + *error;
    return status;
  }
  if (device) *device = found;
  return kAnyopOk;
}

}  // namespace anyop
