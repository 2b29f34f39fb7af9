// SPDX-License-Identifier: Apache-2.0
// The device as torch knows it: its registration and its allocator.
#pragma once

#include <c10/core/Allocator.h>

namespace anyop::torch_device {

// Whether another backend has PrivateUse1.
bool IsTaken();

// Registers allocators, guard and hooks; the platform must be set.
void RegisterDevice();

c10::Allocator* DeviceAllocator();

}  // namespace anyop::torch_device
