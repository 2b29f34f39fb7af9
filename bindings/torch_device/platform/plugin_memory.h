// SPDX-License-Identifier: Apache-2.0
// Memory of a plugin's devices as torch holds it, and what says which of it a thread means.
#pragma once

#include <anyop/device.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <array>

#include "platform/platform.h"

namespace anyop::torch_device {

// The plugin below the device, null where there is none; as deleters outlive the platform's object,
// it is of the process.
extern const AnyopDevice* plugin;
extern thread_local constinit DeviceIndex plugin_device;                      // the current one
extern thread_local constinit std::array<void*, kMaxDevices> plugin_streams;  // the current ones

// Throw what a status means, with the plugin's text or that of the core.
void CheckPlugin(int32_t status);
void CheckCore(int32_t status);

// By name, or by path where it has a '/'; throws unless it can be PyTorch's device. Tensors of its
// DLDeviceType are its own from then on.
const AnyopDevice* OpenPlugin(const std::string& name);

// Memory of a device, in the order of its current stream.
c10::DataPtr AllocateOnPlugin(DeviceIndex index, size_t bytes, c10::Device label);
c10::DeleterFnPtr PluginDeleter(DeviceIndex index);

// From now on, what torch's CPU kernels allocate while they run for the device is the device's.
void LendPluginMemoryToKernels();

c10::CachingDeviceAllocator::DeviceStats PluginStats(DeviceIndex index);

}  // namespace anyop::torch_device
