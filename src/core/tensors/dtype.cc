// SPDX-License-Identifier: Apache-2.0
// Names, sizes and promotion of element types.
#include "tensors/dtype.h"

#include <algorithm>
#include <cstring>

namespace anyop {
namespace {

enum class Kind : int8_t { kBool = 0, kInteger = 1, kFloat = 2, kComplex = 3, kFloat8 = 4 };

struct Row {
  const char* name;
  DlpackType type;
  Kind kind;
};

constexpr Row kRows[kAnyopNumDtypes] = {
    {"bool", {6, 8}, Kind::kBool},
    {"uint8", {1, 8}, Kind::kInteger},
    {"int8", {0, 8}, Kind::kInteger},
    {"int16", {0, 16}, Kind::kInteger},
    {"int32", {0, 32}, Kind::kInteger},
    {"int64", {0, 64}, Kind::kInteger},
    {"float16", {2, 16}, Kind::kFloat},
    {"bfloat16", {4, 16}, Kind::kFloat},
    {"float32", {2, 32}, Kind::kFloat},
    {"float64", {2, 64}, Kind::kFloat},
    {"complex64", {5, 64}, Kind::kComplex},
    {"complex128", {5, 128}, Kind::kComplex},
    {"float8_e4m3fn", {10, 8}, Kind::kFloat8},
    {"float8_e5m2", {12, 8}, Kind::kFloat8},
    {"uint16", {1, 16}, Kind::kInteger},
    {"uint32", {1, 32}, Kind::kInteger},
    {"uint64", {1, 64}, Kind::kInteger},
};

AnyopDtype PromoteIntegers(int a, int b) {
  if (a >= kAnyopUInt16 || b >= kAnyopUInt16)
    return kAnyopNoDtype;  // torch refuses wide unsigned with signed
  if (a == kAnyopUInt8 || b == kAnyopUInt8) {
    const int other = a == kAnyopUInt8 ? b : a;
    return other == kAnyopInt8 ? kAnyopInt16 : static_cast<AnyopDtype>(other);
  }
  return static_cast<AnyopDtype>(std::max(a, b));
}

}  // namespace

const char* DtypeName(int dtype) {
  return dtype >= 0 && dtype < kAnyopNumDtypes ? kRows[dtype].name : "an unknown dtype";
}

AnyopDtype DtypeFromName(const char* name) {
  if (const char* dot = std::strrchr(name, '.')) name = dot + 1;
  for (int i = 0; i < kAnyopNumDtypes; ++i) {
    if (std::strcmp(kRows[i].name, name) == 0) return static_cast<AnyopDtype>(i);
  }
  return kAnyopNoDtype;
}

DlpackType DlpackTypeOf(int dtype) { return kRows[dtype].type; }

AnyopDtype Promote(int a, int b) {
  if (a >= kAnyopNumDtypes || b >= kAnyopNumDtypes) return kAnyopNoDtype;
  if (a == b) return static_cast<AnyopDtype>(a);
  const Kind ka = kRows[a].kind, kb = kRows[b].kind;
  if (ka == Kind::kFloat8 || kb == Kind::kFloat8) return kAnyopNoDtype;
  if (ka != kb) {
    const int high = ka > kb ? a : b, low = ka > kb ? b : a;
    // torch promotes wide unsigned integers with floats only.
    if ((low >= kAnyopUInt16 || high >= kAnyopUInt16) && kRows[high].kind != Kind::kFloat)
      return kAnyopNoDtype;
    return high == kAnyopComplex64 && low == kAnyopFloat64 ? kAnyopComplex128
                                                           : static_cast<AnyopDtype>(high);
  }
  if (ka == Kind::kInteger) return PromoteIntegers(a, b);
  if (ka == Kind::kComplex) return kAnyopComplex128;
  if (std::max(a, b) == kAnyopBFloat16) return kAnyopFloat32;  // float16 with bfloat16
  return static_cast<AnyopDtype>(std::max(a, b));
}

std::string DtypeSetText(uint64_t set) {
  std::string text;
  for (int i = 0; i < kAnyopNumDtypes; ++i) {
    if (set >> i & 1) text += (text.empty() ? "" : ", ") + std::string(kRows[i].name);
  }
  return text;
}

}  // namespace anyop
