// SPDX-License-Identifier: Apache-2.0
// The kernels that a device must have of its own: memory, views, and those of copies.h.
#pragma once

#include <c10/core/Storage.h>
#include <torch/library.h>

#include <string>

#include "platform/platform.h"

namespace anyop::torch_device {

void RegisterOwnKernels(torch::Library* library);
bool IsOwnKernel(const std::string& name);

// Gives a storage of the device another size; what fits of its bytes stays.
void ResizeStorage(const c10::Storage& storage, size_t bytes);

}  // namespace anyop::torch_device
