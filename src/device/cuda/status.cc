// SPDX-License-Identifier: Apache-2.0
// The text of the thread's last failure on a CUDA device.
#include "status.h"

#include <cstdarg>

namespace anyop::cuda {
namespace {

thread_local char text[512] = "";

}  // namespace

const char* LastError() { return text; }

int32_t Refuse(int32_t status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return status;
}

int32_t Check(cudaError_t error, const char* doing) {
  if (__builtin_expect(error == cudaSuccess, 1)) return kAnyopOk;
  WriteError(text, sizeof text, error, doing);
  return error == cudaErrorMemoryAllocation ? kAnyopOutOfMemory : kAnyopDeviceError;
}

}  // namespace anyop::cuda
