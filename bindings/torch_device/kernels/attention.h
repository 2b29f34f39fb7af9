// SPDX-License-Identifier: Apache-2.0
// Attention on the device.
#pragma once

#include <torch/library.h>

namespace anyop::torch_device {

void RegisterAttention(torch::Library* device, torch::Library* autograd);

}  // namespace anyop::torch_device
