// SPDX-License-Identifier: Apache-2.0
// Cells of recurrent networks on the device.
#pragma once

#include <torch/library.h>

namespace anyop::torch_device {

// Where the inner device is the CPU, which has no fused cells: torch calls them for every device
// but the CPU.
void RegisterRecurrent(torch::Library* device, torch::Library* autograd);

}  // namespace anyop::torch_device
