// SPDX-License-Identifier: Apache-2.0
// A shape computed from integer arguments.
#include "odd/ops/windows.h"

#include <string.h>

int32_t odd_windows_cpu(const WindowsArgs* args, AnyopCall*) {
  const int64_t item = args->x->dtype_bits / 8, count = (args->L - args->width) / args->step + 1;
  auto* to = static_cast<char*>(args->out->data);
  for (int64_t r = 0; r < args->rows; ++r) {
    for (int64_t i = 0; i < count; ++i, to += args->width * item) {
      memcpy(to, static_cast<const char*>(args->x->data) + (r * args->L + i * args->step) * item,
             args->width * item);
    }
  }
  return kAnyopOk;
}
