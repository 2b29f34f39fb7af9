// SPDX-License-Identifier: Apache-2.0
// Schemas as torch prints them, and texts that are none.
#include "schema.h"

#include <cstring>
#include <string>

#include "tests/check.h"

using anyop::aten::Op;
using anyop::aten::Param;
using anyop::aten::ReadHiddenWrites;
using anyop::aten::ReadSchema;

namespace {

TEST(ReadsParameters) {
  Op op;
  CHECK(ReadSchema("add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor", &op));
  CHECK(op.full_name == "add.Tensor" && op.name == "aten::add" && op.overload == "Tensor");
  CHECK(op.params.size() == 3 && op.num_positional == 2 && op.results.size() == 1);
  CHECK(op.params[2].name == "alpha" && op.params[2].keyword_only && op.params[2].has_default);
  CHECK(op.params[2].default_value.tag == kAnyopAtenInt && op.params[2].default_value.as.i == 1);
  CHECK(op.needs_glue == "a Scalar (alpha)" && op.refusal.empty());
}

TEST(ReadsTypes) {
  Op op;
  CHECK(ReadSchema(
      "f(Tensor?[] indices, SymInt[2]? dim=None, bool[3] mask, int[]? k=None, Generator? g=None)"
      " -> (Tensor, Tensor[])",
      &op));
  const auto flags = [&](size_t i) { return int{op.params[i].type.flags}; };
  CHECK(flags(0) == (kAnyopAtenIsList | kAnyopAtenOptionalElements));
  CHECK(flags(1) == (kAnyopAtenIsList | kAnyopAtenOptional) && op.params[1].fixed_count == 2);
  CHECK(op.params[1].type_text == "int[2]?" && op.params[0].type_text == "Tensor?[]");
  CHECK(flags(2) == kAnyopAtenIsList && op.params[2].fixed_count == 3);
  CHECK(flags(3) == (kAnyopAtenIsList | kAnyopAtenOptional) && op.params[3].fixed_count == -1);
  CHECK(op.overload.empty() && op.results[1].IsList());
  CHECK(op.needs_glue == "results of different types");
}

TEST(ReadsAliases) {
  Op op;
  CHECK(
      ReadSchema("max.dim_max(Tensor self, int dim, bool keepdim=False, *, Tensor(a!) max, "
                 "Tensor(b!) max_values) -> (Tensor(a!) values, Tensor(b!) indices)",
                 &op));
  CHECK(op.params[3].Is(kAnyopAtenWrites) && !op.params[0].Is(kAnyopAtenWrites));
  CHECK(op.results[0].type.alias == 3 && op.results[1].type.alias == 4);
  Op views;
  CHECK(ReadSchema("split.Tensor(Tensor(a -> *) self, SymInt split_size, int dim=0) -> Tensor(a)[]",
                   &views));
  CHECK(views.results[0].type.alias == 0 && views.results[0].IsList());
  CHECK(!views.params[0].Is(kAnyopAtenWrites));
  Op plain;
  CHECK(ReadSchema("relu(Tensor self) -> Tensor", &plain) && plain.results[0].type.alias == -1);
}

TEST(ReadsDefaults) {
  Op op;
  CHECK(ReadSchema(
      "f(float eps=1.0000000000000001e-05, float scale=inf, str mode=\"a,)b\", "
      "str quote=\"\\\"\\\\\", int[2] pad=[0, 1], bool b=True, float? n=nan, int[3] k=0) -> ()",
      &op));
  const auto value = [&](size_t i) { return op.params[i].default_value; };
  CHECK(value(0).as.f == 1e-5 && value(1).as.f > 1e308 && value(6).as.f != value(6).as.f);
  CHECK(std::string(value(2).as.s) == "a,)b" && value(2).more.count == 4);
  CHECK(std::string(value(3).as.s) == "\"\\");
  CHECK(value(4).more.count == 2 && value(4).as.list[1].as.i == 1);
  CHECK(value(5).tag == kAnyopAtenBool && value(5).as.i == 1);
  CHECK(value(7).tag == kAnyopAtenInt);  // one number for all three
  CHECK(op.results.empty());
}

TEST(RefusesWhatOnlyTorchMakes) {
  Op op;
  CHECK(ReadSchema("get_gradients(int context_id) -> Dict(Tensor, Tensor)", &op));
  CHECK(op.refusal.find("Dict") != std::string::npos);
  Op stream;
  CHECK(ReadSchema("record_stream(Tensor(a!) self, Stream s) -> ()", &stream));
  CHECK(stream.refusal.find("Stream s") != std::string::npos);
}

TEST(FindsHiddenWrites) {
  Op op;
  CHECK(ReadSchema("bn(Tensor x, Tensor? mean, Tensor? var, bool training) -> Tensor", &op));
  CHECK(ReadHiddenWrites("mean,var?training", &op) && op.hidden_writes.size() == 2);
  CHECK(op.hidden_writes[1].param == 2 && op.hidden_writes[1].condition == 3);
  CHECK(ReadHiddenWrites("x", &op) && op.hidden_writes[2].condition == 0);
  CHECK(!ReadHiddenWrites("y", &op) && !ReadHiddenWrites("x?y", &op));
  CHECK(ReadHiddenWrites("", &op));
}

// Every beginning of a schema, and every one with a letter replaced, is read or refused.
TEST(SurvivesDamage) {
  const std::string good =
      "f.x(Tensor(a!)[] self, SymInt[2]? d=[0, 1], *, str s=\"q\", Dict(int, str)? m=None) -> "
      "(Tensor(a!)[], int)";
  Op whole;
  CHECK(ReadSchema(good, &whole));
  int refused = 0;
  for (size_t i = 0; i < good.size(); ++i) {
    Op cut;
    refused += !ReadSchema(good.substr(0, i), &cut);
    for (const char c : {'(', ')', '[', ']', '"', '\\', ',', '=', ' ', '\0', '?', '*'}) {
      std::string bad = good;
      bad[i] = c;
      Op op;
      refused += !ReadSchema(bad, &op);
    }
  }
  CHECK(refused > 300);
}

}  // namespace
