// SPDX-License-Identifier: Apache-2.0
// Tables that calls could not trust are refused by name: wrong versions, sizes, offsets and
// programs.
#include "operator/operator.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>

#include "tests/check.h"

namespace {

// A table as codegen writes it for "f(Tensor x, int k) -> Tensor" with x = "* D", out = "* k", k <=
// D.
struct Table {
  AnyopParam params[3] = {};
  int32_t code[32] = {0,
                      1,
                      0,
                      0,
                      0,
                      /* word 5: out */ 0,
                      1,
                      0,
                      0,
                      1,
                      /* word 10: k <= D */ kAnyopSymbol,
                      1,
                      kAnyopSymbol,
                      0,
                      kAnyopLe,
                      kAnyopEnd,
                      /* word 16: 2*D + 1 */ 0,
                      2,
                      1,
                      /* word 19: a broadcast */ 1,
                      0};
  const char* symbols[2] = {"D", "k"};
  uint16_t attributes[1] = {1};
  AnyopJoin joins[1] = {19};
  AnyopCondition conditions[1] = {{"k <= D", 10, 0}};
  AnyopOp op = {};

  Table() {
    const uint64_t float32 = uint64_t{1} << kAnyopFloat32;
    params[0] = {"x", "* D", 8, 0, 0, kAnyopTensor, 0, 0, 0, -1, -1, float32, {0}, -1, -1};
    params[1] = {"k", nullptr, 16, -1, 0, kAnyopInt, 0, 0, 0, -1, -1, 0, {0}, -1, -1};
    params[2] = {"out", "* k", 24, 5, kAnyopOutput, kAnyopTensor, 0, 0, 0, 0, -1, 0, {0}, -1, -1};
    op.size = sizeof(AnyopOp);
    op.abi_version = ANYOP_ABI_VERSION;
    op.name_space = "acme";
    op.name = "f";
    op.schema = op.doc = op.metadata = "";
    op.params = params;
    op.code = code;
    op.symbols = symbols;
    op.attributes = attributes;
    op.joins = joins;
    op.conditions = conditions;
    op.param_size = sizeof(AnyopParam);
    op.kernel_size = sizeof(AnyopKernelEntry);
    op.num_inputs = 2;
    op.num_outputs = 1;
    op.args_size = 56;
    op.sizes_offset = 32;
    op.code_words = 21;
    op.num_symbols = 2;
    op.num_sizes = 1;
    op.num_groups = 1;
    op.num_joins = 1;
    op.num_conditions = 1;
  }
};

std::string ErrorOf(const std::function<void(Table*)>& change) {
  Table table;
  change(&table);
  std::string error;
  std::unique_ptr<anyop::Operator> op(anyop::MakeOperator(&table.op, ANYOP_ABI_VERSION, &error));
  CHECK((op == nullptr) == !error.empty());
  return error;
}

bool Says(const std::string& error, const char* part) {
  const bool says = error.find(part) != std::string::npos;
  if (!says) std::printf("found \"%s\", expected \"%s\"\n", error.c_str(), part);
  return says;
}

TEST(AGoodTableIsTaken) {
  CHECK_EQ(ErrorOf([](Table*) {}), "");
  CHECK_EQ(ErrorOf([](Table* t) { t->op.size += 64; }), "");  // of a later release
}

TEST(VersionsAreRefusedByName) {
  CHECK(
      Says(ErrorOf([](Table* t) { t->op.abi_version = ANYOP_ABI_VERSION + 1; }), "ABI version 2"));
  CHECK(Says(ErrorOf([](Table* t) { t->op.abi_version = 0; }), "ABI version 0"));
  CHECK(Says(ErrorOf([](Table* t) { t->op.size = 100; }), "oldest release"));
  CHECK(Says(ErrorOf([](Table* t) { t->op.param_size = 48; }), "smaller than any released"));
}

TEST(PlacesOutsideTheArgumentsAreRefused) {
  CHECK(Says(ErrorOf([](Table* t) { t->op.sizes_offset = 48; }), "sizes outside"));
  CHECK(Says(ErrorOf([](Table* t) { t->params[1].offset = 52; }), "field outside"));
  CHECK(Says(ErrorOf([](Table* t) { t->params[1].offset = 4; }), "field outside"));
  CHECK(Says(ErrorOf([](Table* t) { t->params[0].flags = kAnyopList, t->params[0].offset = 48; }),
             "field outside"));
}

TEST(OnlyWhatIsReadIsCopied) {
  CHECK_EQ(ErrorOf([](Table* t) { t->params[0].flags = kAnyopCopied; }), "");
  for (int written : {kAnyopMutated, kAnyopInplace}) {
    CHECK(Says(ErrorOf([&](Table* t) {
                 t->params[0].flags = static_cast<uint16_t>(kAnyopCopied | written);
               }),
               "copies what is written at parameter x"));
  }
  CHECK(Says(ErrorOf([](Table* t) { t->params[2].flags = kAnyopCopied | kAnyopOutput; }),
             "copies what is written at parameter out"));
}

// As a core does with layouts of later ones.
TEST(UnknownLayoutsAreRefused) {
  CHECK_EQ(ErrorOf([](Table* t) { t->params[0].layout = kAnyopDense; }), "");
  CHECK(Says(ErrorOf([](Table* t) { t->params[0].layout = kAnyopDense + 1; }),
             "unknown layout, dtype rule or alignment at parameter x"));
}

TEST(BrokenProgramsAreRefused) {
  CHECK(Says(ErrorOf([](Table* t) { t->params[0].shape = 20; }), "lacks a shape"));
  CHECK(Says(ErrorOf([](Table* t) { t->code[1] = 30; }), "broken shape"));
  CHECK(Says(ErrorOf([](Table* t) { t->code[2] = 2; }), "broken shape"));
  CHECK(Says(ErrorOf([](Table* t) { t->code[4] = 2; }), "broken size"));
  CHECK(Says(ErrorOf([](Table* t) { t->code[4] = ~19; }), "broken size"));
  CHECK(Says(ErrorOf([](Table* t) { t->code[14] = 99; }), "broken condition"));
  CHECK(Says(ErrorOf([](Table* t) { t->code[11] = 7; }), "broken condition"));
  CHECK(Says(ErrorOf([](Table* t) { t->code[15] = kAnyopAdd; }), "broken condition"));
  CHECK(Says(ErrorOf([](Table* t) { t->code[20] = 5; }), "later group"));
  CHECK(Says(ErrorOf([](Table* t) { t->attributes[0] = 0; }), "no integer argument"));
  CHECK(Says(ErrorOf([](Table* t) { t->params[0].dtype_a = 2; }), "later dtype"));
}

// "mode == 'sum'" at word 21 and as the condition; k is the text then.
TEST(TextsAreComparedWhereTheyAreKnown) {
  const auto with = [](const std::function<void(Table*)>& change) {
    return ErrorOf([&](Table* t) {
      const int32_t words[] = {kAnyopTextIs, 0, 3, 0x6d7573, kAnyopEnd};
      std::copy(std::begin(words), std::end(words), t->code + 21);
      t->op.code_words = 26;
      t->conditions[0].program = 21;
      change(t);
    });
  };
  const auto text = [](Table* t) { t->params[1].kind = kAnyopStr, t->code[22] = 1; };
  const auto no_text = [&](const std::function<void(Table*)>& change) {
    return with([&](Table* t) {
      t->op.num_symbols = 1, t->op.args_size = 64, t->params[2].offset = 32,
      t->op.sizes_offset = 40;
      t->code[9] = 0;  // out = "* D"
      text(t), change(t);
    });
  };
  CHECK_EQ(with([](Table*) {}), "");  // the dtype of x
  CHECK_EQ(no_text([](Table*) {}), "");
  CHECK_EQ(no_text([](Table* t) { t->code[9] = 64 + 21; }), "");
  CHECK_EQ(no_text([](Table* t) { t->code[4] = 64 + 21; }), "");
  CHECK(Says(with([](Table* t) { t->code[4] = 64 + 21; }), "broken size at parameter x"));
  for (int flag : {kAnyopOptional, kAnyopList}) {
    CHECK(Says(no_text([=](Table* t) { t->params[1].flags = static_cast<uint16_t>(flag); }),
               "broken condition"));
  }
  for (int param : {1, 2, 3, -1})
    CHECK(Says(with([=](Table* t) { t->code[22] = param; }), "broken condition"));
  for (int bytes : {-1, 5, 100, INT32_MAX})
    CHECK(Says(with([=](Table* t) { t->code[23] = bytes; }), "broken condition"));
}

TEST(BrokenDtypeRulesAreRefused) {
  const auto rule = [](int kind, int a, int b) {
    return ErrorOf([=](Table* t) {
      t->params[2].dtype_rule = static_cast<uint8_t>(kind);
      t->params[2].dtype_a = static_cast<int8_t>(a), t->params[2].dtype_b = static_cast<int8_t>(b);
    });
  };
  CHECK_EQ(rule(kAnyopFirstGiven, 0, 0), "");
  CHECK(Says(rule(kAnyopFirstGiven, 0, -1), "incomplete dtype rule at parameter out"));
  CHECK(Says(rule(kAnyopFirstGiven, 1, 0), "dtype rule of no dtypes at parameter out"));
  CHECK(Says(rule(kAnyopOneOf, 1, -1), "dtype rule of no dtypes at parameter out"));
  CHECK(Says(rule(kAnyopFromAttribute, 0, -1), "dtype rule of no dtypes at parameter out"));
  CHECK(Says(rule(kAnyopFirstGiven + 1, 0, 0), "unknown layout, dtype rule"));
  const auto promotion = [](uint64_t set) {
    return ErrorOf([=](Table* t) {
      t->params[2].dtype_rule = kAnyopPromote, t->params[2].dtype_set = set;
      t->params[2].dtype_a = 0, t->params[2].dtype_b = -1;
    });
  };
  CHECK_EQ(promotion(1u << kAnyopFloat32), "");
  CHECK(Says(promotion(0), "incomplete dtype rule at parameter out"));
  CHECK(Says(promotion(3u << kAnyopFloat32), "incomplete dtype rule at parameter out"));
}

}  // namespace
