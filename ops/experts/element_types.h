// SPDX-License-Identifier: Apache-2.0
// Calls a body with the C++ type of a floating dtype's elements on the CPU.
#pragma once

#include "anyop/cpu.h"

namespace anyop {

template <typename Run>
void WithElement(AnyopDtype dtype, const Run& run) {
  if (dtype == kAnyopFloat16) return run(cpu::float16());
  if (dtype == kAnyopBFloat16) return run(cpu::bfloat16());
  if (dtype == kAnyopFloat64) return run(double());
  run(float());
}

}  // namespace anyop
