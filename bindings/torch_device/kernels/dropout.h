// SPDX-License-Identifier: Apache-2.0
// Dropout on the device.
#pragma once

#include <torch/library.h>

namespace anyop::torch_device {

// Where the inner device is the CPU: its kernel draws from the CPU's generator and takes no other.
void RegisterDropout(torch::Library* device);

}  // namespace anyop::torch_device
