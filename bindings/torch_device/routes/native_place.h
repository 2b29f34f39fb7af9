// SPDX-License-Identifier: Apache-2.0
// Where operators run that stand for torch's: streams, and whose kernels.
#pragma once

#include <c10/core/Device.h>

namespace anyop::torch_device {

// A device's current stream for operators; nullptr: the default one, or the core asks the device
// itself. Throws where operators have no kernels.
void* StreamOf(c10::Device device);

// Whose kernels torch runs on tensors of a device: c10::kCPU, c10::kCUDA; kMeta where another's.
c10::DeviceType DeviceBelow(c10::Device device);

class Platform;
// Tells the core whose kernels take the memory of a platform that is about to be used.
void TellWhatIsBelow(const Platform& chosen);

}  // namespace anyop::torch_device
