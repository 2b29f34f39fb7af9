// SPDX-License-Identifier: Apache-2.0
// A fixed buffer for each thread, so that noting an error cannot fail.
#include "last_error.h"

#include <cstdarg>
#include <cstdio>

namespace anyop {
namespace {

thread_local char text[1024] = "";

}  // namespace

const char* LastDeviceError() { return text; }

int32_t RefuseOnDevice(int32_t status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return status;
}

}  // namespace anyop
