// SPDX-License-Identifier: Apache-2.0
// Kernels in files of the vendor's compiler: .cubin, .hsaco and the like.
#pragma once

#include "runtime.h"

namespace anyop::cuda_like {

int32_t LoadImage(int32_t device, const AnyopDeviceImage* image, void** loaded);
int32_t FindKernel(int32_t device, void* loaded, const char* entry, void** kernel);
int32_t LaunchKernel(int32_t device, void* stream, void* kernel, const AnyopDeviceLaunch* launch);

}  // namespace anyop::cuda_like
