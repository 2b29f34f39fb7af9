// SPDX-License-Identifier: Apache-2.0
// Names, DLPack types and promotion; the expected promotions are torch 2.13's.
#include "tensors/dtype.h"

#include "tests/check.h"

namespace {

TEST(NamesAndDlpackTypesRoundTrip) {
  for (int i = 0; i < kAnyopNumDtypes; ++i) {
    CHECK_EQ(static_cast<int>(anyop::DtypeFromName(anyop::DtypeName(i))), i);
    AnyopTensor t = {};
    t.dtype_code = anyop::DlpackTypeOf(i).code;
    t.dtype_bits = anyop::DlpackTypeOf(i).bits;
    CHECK_EQ(static_cast<int>(AnyopDtypeOf(&t)), i);
  }
}

TEST(NamesWithAPrefixAndUnknownOnes) {
  CHECK_EQ(int{anyop::DtypeFromName("torch.bfloat16")}, int{kAnyopBFloat16});
  CHECK_EQ(int{anyop::DtypeFromName("float33")}, int{kAnyopNoDtype});
  CHECK_EQ(int{anyop::DtypeFromName("")}, int{kAnyopNoDtype});
  CHECK_EQ(std::string(anyop::DtypeName(kAnyopNoDtype)), "an unknown dtype");
}

TEST(PromotionIsTorchs) {
  const struct {
    int a, b, expected;
  } cases[] = {
      {kAnyopFloat16, kAnyopBFloat16, kAnyopFloat32},
      {kAnyopBFloat16, kAnyopFloat32, kAnyopFloat32},
      {kAnyopFloat32, kAnyopFloat64, kAnyopFloat64},
      {kAnyopInt64, kAnyopFloat16, kAnyopFloat16},
      {kAnyopUInt8, kAnyopInt8, kAnyopInt16},
      {kAnyopUInt8, kAnyopInt32, kAnyopInt32},
      {kAnyopInt16, kAnyopInt64, kAnyopInt64},
      {kAnyopBool, kAnyopUInt8, kAnyopUInt8},
      {kAnyopFloat64, kAnyopComplex64, kAnyopComplex128},
      {kAnyopFloat32, kAnyopComplex64, kAnyopComplex64},
      {kAnyopComplex64, kAnyopComplex128, kAnyopComplex128},
      {kAnyopUInt16, kAnyopInt32, kAnyopNoDtype},
      {kAnyopBool, kAnyopUInt16, kAnyopNoDtype},
      {kAnyopUInt64, kAnyopComplex64, kAnyopNoDtype},
      {kAnyopUInt32, kAnyopFloat16, kAnyopFloat16},
      {kAnyopUInt16, kAnyopUInt16, kAnyopUInt16},
      {kAnyopFloat8E5M2, kAnyopFloat32, kAnyopNoDtype},
      {kAnyopNoDtype, kAnyopFloat32, kAnyopNoDtype},
  };
  for (const auto& c : cases) {
    CHECK_EQ(int{anyop::Promote(c.a, c.b)}, c.expected);
    CHECK_EQ(int{anyop::Promote(c.b, c.a)}, c.expected);
  }
  for (int i = 0; i < kAnyopNumDtypes; ++i) CHECK_EQ(int{anyop::Promote(i, i)}, i);
}

TEST(SetsAsText) {
  CHECK_EQ(anyop::DtypeSetText(1ull << kAnyopFloat32 | 1ull << kAnyopFloat16), "float16, float32");
  CHECK_EQ(anyop::DtypeSetText(0), "");
}

}  // namespace
