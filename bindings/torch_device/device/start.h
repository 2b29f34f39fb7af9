// SPDX-License-Identifier: Apache-2.0
// Brings the device into torch, in two steps.
#pragma once

#include <cstdint>
#include <string>

namespace anyop::torch_device {

// Takes PrivateUse1: guard, allocators, hooks. Cheap, chooses no platform; again is no error.
// Throws when another backend has it.
void Claim();

// Chooses the platform ("": the default) and registers a kernel for every overload; how many. Again
// is no error.
int64_t Start(const std::string& platform_name);

void RegisterAutocast();

}  // namespace anyop::torch_device
