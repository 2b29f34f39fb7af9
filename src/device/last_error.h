// SPDX-License-Identifier: Apache-2.0
// The text of the thread's last failure on a device, for the devices in this tree.
#pragma once

#include <cstdint>

namespace anyop {

// Notes the text and returns the status.
__attribute__((format(printf, 2, 3))) int32_t RefuseOnDevice(int32_t status, const char* format,
                                                             ...);
const char* LastDeviceError();

}  // namespace anyop
