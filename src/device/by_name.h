// SPDX-License-Identifier: Apache-2.0
// A plugin of anyop's own that can be one of several devices, and is told which: what the loader
// asks it beside AnyopDeviceEntry. It exports AnyopDeviceByName.
#pragma once

#include <cstddef>

#include "anyop/device.h"

namespace anyop {

// kAnyopNotImplemented: it knows no such device, and text lists those it knows. Any other failure
// is text.
using DeviceByName = int32_t (*)(uint32_t abi_version, const char* name, const AnyopDevice** device,
                                 char* text, size_t capacity);

}  // namespace anyop
