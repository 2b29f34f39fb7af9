// SPDX-License-Identifier: Apache-2.0
// Backward on a device that came after the first backward of the process.
#pragma once

namespace anyop::torch_device {

// Torch's engine of autograd makes a queue and a thread for each device at the first backward.
// Makes those that it lacks for this platform; nothing where no backward was yet. Throws where a
// thread cannot be had.
void AddEngineQueues();

}  // namespace anyop::torch_device
