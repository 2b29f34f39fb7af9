// SPDX-License-Identifier: Apache-2.0
// The kinds of device that the process knows, by DLDeviceType and by name.
#pragma once

#include <string>

#include "anyop/device.h"

namespace anyop {

// One atomic load; nullptr when there is none. Calls nothing of the vendor's.
const AnyopDevice* FindDevice(int32_t device_type);

// nullptr with *error when there is none.
const AnyopDevice* FindDeviceByName(const char* name, std::string* error);

// Adds a device, or says in *error why not. The same struct again is no error.
int32_t RegisterDevice(const AnyopDevice* device, std::string* error);

// Makes tensors of its type this device's, once and for all.
int32_t UseDevice(const AnyopDevice* device, std::string* error);

// Opens a plugin and registers its device.
int32_t LoadDevice(const char* path, const AnyopDevice** device, std::string* error);

// Whether a device, which may be older than this header, has a function.
template <typename Function>
bool HasFunction(const AnyopDevice* device, Function AnyopDevice::* member) {
  const auto* at = reinterpret_cast<const char*>(&(device->*member));
  return at + sizeof(Function) <= reinterpret_cast<const char*>(device) + device->size &&
         device->*member;
}

}  // namespace anyop
