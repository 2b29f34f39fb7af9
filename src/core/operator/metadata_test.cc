// SPDX-License-Identifier: Apache-2.0
// Tolerances and backends as the metadata of a table states them, and metadata that does not.
#include "operator/metadata.h"

#include "tests/check.h"

namespace {

TEST(TolerancesOfTheTable) {
  AnyopOp table = {};
  table.metadata =
      "{\"doc\":\"a \\\"tolerance\\\" {\",\"tolerance\":{\"float32\":1e-3,\"int32\":1.0},"
      "\"tolerance_on\":{\"cuda\":{\"float32\":0.5}},\"test\":{\"finite\":[\"cuda\"],\"range\":{}},"
      "\"kernels\":[{\"backend\":\"cpu\"},{\"backend\":\"cuda\"}],\"bench\":{\"float64\":3}}";
  anyop::Operator op = {};
  op.table = &table;
  CHECK_EQ(anyop::ToleranceOf(op, kAnyopFloat32, "opencl"), 2e-3);
  CHECK_EQ(anyop::ToleranceOf(op, kAnyopFloat32, "cuda"), 0.501);
  CHECK_EQ(anyop::ToleranceOf(op, kAnyopInt32, "cuda"), 2);
  CHECK_EQ(anyop::ToleranceOf(op, kAnyopFloat64, "cuda"), -1);
  CHECK(anyop::IsFiniteAlone(op, "cuda") && !anyop::IsFiniteAlone(op, "opencl"));
  CHECK(anyop::StatesBackend(op, "cuda") && !anyop::StatesBackend(op, "float64"));
}

TEST(MetadataThatSaysNothing) {
  AnyopOp table = {};
  anyop::Operator op = {};
  op.table = &table;
  for (const char* text :
       {"{}", "", "[1", "{\"tolerance\":1,\"test\":{\"finite\":1},\"kernels\":[1]}"}) {
    table.metadata = text;
    CHECK_EQ(anyop::ToleranceOf(op, kAnyopFloat32, "cuda"), -1);
    CHECK(!anyop::IsFiniteAlone(op, "cuda"));
    CHECK(!anyop::StatesBackend(op, "cuda"));
  }
}

}  // namespace
