// SPDX-License-Identifier: Apache-2.0
// Elements become float64 one at a time; equal bits need no more.
#include "tensors/compare_tensors.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "anyop/cpu.h"
#include "tensors/dtype.h"
#include "tensors/memory.h"

namespace anyop {
namespace {

using Value = std::complex<double>;

// Sign, exponent and fraction of an 8-bit float; e4m3fn has no infinity.
double FromFloat8(uint8_t bits, bool e4m3) {
  const int fraction_bits = e4m3 ? 3 : 2, bias = e4m3 ? 7 : 15;
  const int exponent = (bits & 0x7f) >> fraction_bits, fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = bits & 0x80 ? -1 : 1;
  if (e4m3 ? (bits & 0x7f) == 0x7f : exponent == 31 && fraction) return NAN;
  if (!e4m3 && exponent == 31) return sign * INFINITY;
  const double steps = exponent ? (1 << fraction_bits) + fraction : fraction;
  return sign * std::ldexp(steps, std::max(exponent, 1) - bias - fraction_bits);
}

template <typename T>
double As(const void* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return cpu::Load<double>(value);
}

Value Element(const void* at, int dtype) {
  const auto* parts = static_cast<const char*>(at);
  switch (dtype) {
    case kAnyopFloat16:
      return As<cpu::float16>(at);
    case kAnyopBFloat16:
      return As<cpu::bfloat16>(at);
    case kAnyopFloat32:
      return As<float>(at);
    case kAnyopFloat64:
      return As<double>(at);
    case kAnyopComplex64:
      return {As<float>(parts), As<float>(parts + 4)};
    case kAnyopComplex128:
      return {As<double>(parts), As<double>(parts + 8)};
    case kAnyopFloat8E4M3FN:
    case kAnyopFloat8E5M2:
      return FromFloat8(*static_cast<const uint8_t*>(at), dtype == kAnyopFloat8E4M3FN);
    case kAnyopInt8:
      return As<int8_t>(at);
    case kAnyopInt16:
      return As<int16_t>(at);
    case kAnyopInt32:
      return As<int32_t>(at);
    case kAnyopInt64:
      return As<int64_t>(at);
    case kAnyopUInt16:
      return As<uint16_t>(at);
    case kAnyopUInt32:
      return As<uint32_t>(at);
    case kAnyopUInt64:
      return As<uint64_t>(at);
    default:
      return As<uint8_t>(at);  // bool too
  }
}

bool IsFloating(int dtype) {
  return (dtype >= kAnyopFloat16 && dtype <= kAnyopComplex128) || dtype == kAnyopFloat8E4M3FN ||
         dtype == kAnyopFloat8E5M2;
}

bool IsNan(Value v) { return std::isnan(v.real()) || std::isnan(v.imag()); }
bool IsFinite(Value v) { return std::isfinite(v.real()) && std::isfinite(v.imag()); }

bool Fits(Value found, Value expected, bool floating, double tolerance, bool finite_alone) {
  if (!floating) return tolerance >= 0 && std::abs(found - expected) <= tolerance;
  if (!IsFinite(expected))
    return finite_alone || found == expected || (IsNan(found) && IsNan(expected));
  return found == expected || std::abs(found - expected) <= tolerance * (1 + std::abs(expected));
}

std::string NumberText(Value v) {
  char text[80];
  if (v.imag() == 0) {
    std::snprintf(text, sizeof text, "%.9g", v.real());
  } else {
    std::snprintf(text, sizeof text, "%.9g%+.9gj", v.real(), v.imag());
  }
  return text;
}

// Moves index on by one element and says how many elements of memory that is; false behind the
// last.
bool Next(const AnyopTensor& t, int64_t* index, int64_t* at) {
  for (int d = t.ndim - 1; d >= 0; --d) {
    *at += t.strides[d];
    if (++index[d] < t.shape[d]) return true;
    *at -= t.strides[d] * t.shape[d];
    index[d] = 0;
  }
  return false;
}

std::string PlaceText(int ndim, const int64_t* index) {
  std::string text;
  for (int d = 0; d < ndim; ++d) text += (d ? ", " : "[") + std::to_string(index[d]);
  return ndim ? text + "]" : "";
}

}  // namespace

std::string DifferenceOf(const AnyopTensor& found, const AnyopTensor& expected, double tolerance,
                         bool finite_alone) {
  const int dtype = AnyopDtypeOf(&expected);
  const auto item = static_cast<size_t>(expected.dtype_bits / 8);
  int64_t index[kMaxRank] = {}, at = 0, count = 1, off = 0;
  for (int d = 0; d < expected.ndim; ++d) count *= expected.shape[d];
  std::string first;
  if (count == 0) return first;
  do {
    const auto* a = static_cast<const char*>(found.data) + at * static_cast<int64_t>(item);
    const auto* b = static_cast<const char*>(expected.data) + at * static_cast<int64_t>(item);
    if (std::memcmp(a, b, item) == 0) continue;
    const Value x = Element(a, dtype), y = Element(b, dtype);
    if (Fits(x, y, IsFloating(dtype), tolerance, finite_alone)) continue;
    if (off++ == 0)
      first =
          PlaceText(expected.ndim, index) + " is " + NumberText(x) + ", expected " + NumberText(y);
  } while (Next(expected, index, &at));
  if (off == 0) return first;
  char text[80] = "";
  if (tolerance >= 0)
    std::snprintf(text, sizeof text, " within %g%s", tolerance,
                  IsFloating(dtype) ? " * (1 + |expected|)" : "");
  return first + text + "; " + std::to_string(off) + " of " + std::to_string(count) + " are off";
}

}  // namespace anyop
