// SPDX-License-Identifier: Apache-2.0
// Few rows by 4-bit weights on the CPU: dot products, which read every weight once and unpack it in
// registers. No factor is rounded: what is multiplied is the difference from the zero point, an
// integer, and the sum of a group is scaled.
#pragma once

#include "anyop/kernel.h"
#include "w4_rows.h"

namespace anyop {

struct W4Product {
  w4::Rows weight;
  const void *x, *bias;  // bias: N of x's dtype, or nullptr
  void* out;
  AnyopDtype dtype;  // float32, float16 or bfloat16
  int64_t M;
};

constexpr int64_t kMostW4Rows = 16;

// A product of at most kMostW4Rows rows. The bits of a result depend neither on other rows nor on
// the number of threads.
int32_t MultiplyW4Rows(AnyopCall* call, const W4Product& product);

}  // namespace anyop
