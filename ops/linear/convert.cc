// SPDX-License-Identifier: Apache-2.0
// Converts runs of elements; whole vectors when they are contiguous.
#include "convert.h"

#include <cstring>

#include "anyop/cpu/convert.h"

namespace anyop {
namespace {

using cpu::bfloat16;
using cpu::float16;

ANYOP_CPU_CLONES void WidenHalf(AnyopDtype dtype, const void* from, int64_t n, float* to) {
  if (dtype == kAnyopFloat16) {
    cpu::WidenFrom(static_cast<const float16*>(from), n, to);
  } else {
    cpu::WidenFrom(static_cast<const bfloat16*>(from), n, to);
  }
}

ANYOP_CPU_CLONES void NarrowHalf(const float* from, int64_t n, AnyopDtype dtype, void* to) {
  if (dtype == kAnyopFloat16) {
    cpu::NarrowTo(from, n, static_cast<float16*>(to));
  } else {
    cpu::NarrowTo(from, n, static_cast<bfloat16*>(to));
  }
}

template <typename T>
const T* At(const void* data, int64_t at) {
  return static_cast<const T*>(data) + at;
}

template <typename T, typename Wide>
void WidenStrided(const T* from, int64_t step, int64_t n, Wide* to) {
  for (int64_t i = 0; i < n; ++i) to[i] = cpu::Load<Wide>(from[i * step]);
}

template <typename T>
void Copy(const T* from, int64_t step, int64_t n, T* to) {
  if (step == 1) {
    // An empty tensor's memory may be a null pointer, which memcpy does not take.
    if (n > 0) std::memcpy(to, from, static_cast<size_t>(n) * sizeof(T));
  } else {
    WidenStrided(from, step, n, to);
  }
}

}  // namespace

void Widen(AnyopDtype dtype, const void* from, int64_t at, int64_t step, int64_t n, float* to) {
  if (dtype == kAnyopFloat32) {
    Copy(At<float>(from, at), step, n, to);
  } else if (step == 1) {
    WidenHalf(dtype, At<uint16_t>(from, at), n, to);
  } else if (dtype == kAnyopFloat16) {
    WidenStrided(At<float16>(from, at), step, n, to);
  } else {
    WidenStrided(At<bfloat16>(from, at), step, n, to);
  }
}

void Widen(AnyopDtype dtype, const void* from, int64_t at, int64_t step, int64_t n, double* to) {
  if (dtype == kAnyopFloat32) {
    WidenStrided(At<float>(from, at), step, n, to);
  } else {
    Copy(At<double>(from, at), step, n, to);
  }
}

void Narrow(const float* from, int64_t n, AnyopDtype dtype, void* to, int64_t at) {
  if (dtype == kAnyopFloat32) {
    Copy(from, 1, n, static_cast<float*>(to) + at);
  } else {
    NarrowHalf(from, n, dtype, static_cast<uint16_t*>(to) + at);
  }
}

void Narrow(const double* from, int64_t n, AnyopDtype, void* to, int64_t at) {
  Copy(from, 1, n, static_cast<double*>(to) + at);
}

}  // namespace anyop
