// SPDX-License-Identifier: Apache-2.0
// Collectives of torch.distributed on tensors of the device.
#pragma once

namespace anyop::torch_device {

// Puts a kernel before torch's own of every operator of process groups; the platform must be set.
void RegisterCollectives();

}  // namespace anyop::torch_device
