// SPDX-License-Identifier: Apache-2.0
// Elements of float types to the type that products are computed in, and back.
#pragma once

#include "anyop/kernel.h"

namespace anyop {

// Of float16, bfloat16, float32 or float64, in bytes.
inline int64_t SizeOf(AnyopDtype dtype) {
  return dtype == kAnyopFloat64 ? 8 : dtype == kAnyopFloat32 ? 4 : 2;
}

// to[i] = from[at + i * step] for i < n. To float from float16, bfloat16 or float32; to double from
// float32 or float64.
void Widen(AnyopDtype dtype, const void* from, int64_t at, int64_t step, int64_t n, float* to);
void Widen(AnyopDtype dtype, const void* from, int64_t at, int64_t step, int64_t n, double* to);

// to[at + i] = from[i] for i < n, rounded to nearest, ties to even.
void Narrow(const float* from, int64_t n, AnyopDtype dtype, void* to, int64_t at);
void Narrow(const double* from, int64_t n, AnyopDtype dtype, void* to, int64_t at);

}  // namespace anyop
