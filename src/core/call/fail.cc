// SPDX-License-Identifier: Apache-2.0
// The text of a failed call. Like dtype.cc and memory.cc without state, so bindings compile it in.
#include <cstdarg>
#include <cstdio>

#include "call/call.h"

namespace anyop {

int32_t Fail(Frame* frame, int32_t status, const char* format, ...) {
  const int n = std::snprintf(frame->error, sizeof frame->error, "%s: ", frame->op->name.c_str());
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(frame->error + n, sizeof frame->error - static_cast<size_t>(n), format, arguments);
  va_end(arguments);
  return status;
}

int32_t KernelFailure(Frame* frame, int32_t status) {
  if (status != kAnyopIndexError && (status < 0 || status >= kAnyopPending))
    return Fail(frame, kAnyopInternalError, "its kernel returned the unknown status %d", status);
  if (frame->error[0]) return status;
  return Fail(
      frame, status,
      status == kAnyopOutOfMemory ? "out of memory" : "its kernel failed without a message");
}

}  // namespace anyop
