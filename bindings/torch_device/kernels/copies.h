// SPDX-License-Identifier: Apache-2.0
// Copies within the device, and between it, the CPU and the inner device.
#pragma once

#include <ATen/core/Tensor.h>

#include "platform/platform.h"

namespace anyop::torch_device {

// Torch's copy_, _copy_from and _copy_from_and_resize: between any two of this device, the CPU and
// the inner device. What cannot be copied later waits for the current stream.
at::Tensor& Copy(at::Tensor& self, const at::Tensor& source, bool non_blocking);
at::Tensor CopyFrom(const at::Tensor& source, const at::Tensor& to, bool non_blocking);
at::Tensor CopyFromAndResize(const at::Tensor& source, const at::Tensor& to);

// Copies bytes of one device on its current stream.
void CopyBytes(void* to, const void* from, size_t bytes, DeviceIndex index);

}  // namespace anyop::torch_device
