// SPDX-License-Identifier: Apache-2.0
// The kinds of device that the process knows, by DLDeviceType.
#pragma once

#include <string>

#include "anyop/device.h"

namespace anyop {

// One atomic load; nullptr when there is none. Calls nothing of the vendor's.
const AnyopDevice* FindDevice(int32_t device_type);

// Adds a device, or says in *error why not. The same struct again is no error.
int32_t RegisterDevice(const AnyopDevice* device, std::string* error);

}  // namespace anyop
