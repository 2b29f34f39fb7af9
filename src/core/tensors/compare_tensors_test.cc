// SPDX-License-Identifier: Apache-2.0
// Which elements are off: every dtype, views, what is not finite.
#include "tensors/compare_tensors.h"

#include <cmath>
#include <cstring>

#include "tensors/dtype.h"
#include "tests/check.h"

namespace {

// One row of elements.
struct Row {
  AnyopTensor tensor = {};
  int64_t size, step = 1;

  Row(AnyopDtype dtype, const void* data, int64_t count) : size(count) {
    const anyop::DlpackType type = anyop::DlpackTypeOf(dtype);
    tensor = {const_cast<void*>(data), 1, 0, 1, type.code, type.bits, 1, &size, &step, 0};
  }
};

template <typename T, size_t N>
std::string Difference(AnyopDtype dtype, const T (&found)[N], const T (&expected)[N], int64_t count,
                       double tolerance = 0.01, bool finite_alone = false) {
  const Row a(dtype, found, count), b(dtype, expected, count);
  return anyop::DifferenceOf(a.tensor, b.tensor, tolerance, finite_alone);
}

TEST(FloatsFitWithinTheTolerance) {
  const float found[] = {1.019f, -3.1f, 1e10f}, expected[] = {1, -3, 1e10f};
  CHECK_EQ(Difference(kAnyopFloat32, found, expected, 1), "");
  CHECK_EQ(Difference(kAnyopFloat32, found, expected, 3),
           "[1] is -3.0999999, expected -3 within 0.01 * (1 + |expected|); 1 of 3 are off");
  CHECK_EQ(Difference(kAnyopFloat32, found, expected, 0), "");
}

TEST(EveryWidthIsRead) {
  const uint16_t half[] = {0x3c00, 0x0001, 0xc500}, other[] = {0x3c00, 0x0001, 0xc400};  // -5, -4
  CHECK(Difference(kAnyopFloat16, half, other, 3).find("[2] is -5, expected -4") == 0);
  const uint16_t brain[] = {0x3f80, 0x4040}, more[] = {0x3f80, 0x4000};  // 3, 2
  CHECK(Difference(kAnyopBFloat16, brain, more, 2).find("[1] is 3, expected 2") == 0);
  const uint8_t e4m3[] = {0x38, 0x01, 0xfe}, e5m2[] = {0x3c, 0x01, 0xfc}, zero[3] = {};
  CHECK(Difference(kAnyopFloat8E4M3FN, e4m3, zero, 1).find("[0] is 1, expected 0") == 0);
  CHECK(Difference(kAnyopFloat8E4M3FN, e4m3, zero, 3).find("; 2 of 3") != std::string::npos);
  CHECK(Difference(kAnyopFloat8E5M2, e5m2, zero, 3).find("[0] is 1, expected 0") == 0);
  const double pair[] = {1, 2}, twin[] = {1, -2};
  CHECK(Difference(kAnyopComplex128, pair, twin, 1).find("[0] is 1+2j, expected 1-2j") == 0);
  const int64_t large[] = {(int64_t{1} << 60) + 1}, next[] = {int64_t{1} << 60};
  CHECK(!Difference(kAnyopInt64, large, next, 1, -1).empty());
  CHECK(Difference(kAnyopInt64, large, next, 1, 1).empty());
}

TEST(WhatIsNotFiniteIsEqual) {
  const float nan = NAN, inf = INFINITY;
  const float found[] = {nan, inf, 1}, expected[] = {nan, inf, inf};
  CHECK_EQ(Difference(kAnyopFloat32, found, expected, 2), "");
  CHECK(Difference(kAnyopFloat32, found, expected, 3).find("[2] is 1, expected inf") == 0);
  CHECK_EQ(Difference(kAnyopFloat32, found, expected, 3, 0.01, true), "");
  CHECK(Difference(kAnyopFloat32, expected, found, 3).find("[2] is inf, expected 1") == 0);
}

TEST(ViewsAreWalked) {
  const float found[] = {0, 9, 1, 9, 2, 9, 3, 9}, expected[] = {0, 7, 1, 7, 2, 7, 4, 7};
  int64_t shape[] = {2, 2}, strides[] = {4, 2};
  Row a(kAnyopFloat32, found, 0), b(kAnyopFloat32, expected, 0);
  for (Row* row : {&a, &b})
    row->tensor.ndim = 2, row->tensor.shape = shape, row->tensor.strides = strides;
  CHECK(anyop::DifferenceOf(a.tensor, b.tensor, 0.01, false).find("[1, 1] is 3, expected 4") == 0);
}

}  // namespace
