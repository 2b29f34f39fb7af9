// SPDX-License-Identifier: Apache-2.0
// Texts of OpenCL C to kernels, each built once: in this process, and, by the cache, on this
// machine.
#pragma once

#include "runtime.h"

namespace anyop::opencl {

int32_t LoadImage(int32_t device, const AnyopDeviceImage* image, void** loaded);
int32_t FindKernel(int32_t device, void* loaded, const char* entry, void** kernel);
int32_t LaunchKernel(int32_t device, void* stream, void* kernel, const AnyopDeviceLaunch* launch);

// program_cache.cc: a file for each text, options, device and driver.
std::string ReadProgram(const std::string& identity);  // empty: not there, or not what it should be
void KeepProgram(const std::string& identity, const std::string& binary);

}  // namespace anyop::opencl
