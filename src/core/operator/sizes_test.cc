// SPDX-License-Identifier: Apache-2.0
// Letters, groups and expressions: binding, comparing, solving, broadcasting, overflow.
#include "operator/sizes.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "tests/check.h"

namespace {

using anyop::ShapeProgram;
using anyop::Sizes;

// Symbols D, B (sizes) and k; groups X, Y and their broadcast.
struct Fixture {
  int32_t code[64] = {};
  const char* symbols[3] = {"D", "B", "k"};
  int32_t joined[2] = {0, 1};
  AnyopOp table = {};
  anyop::Operator op = {};
  anyop::Arena arena;

  Fixture() {
    table.code = code;
    table.symbols = symbols;
    op.table = &table;
    op.num_sizes = 2;
    op.num_symbols = 3;
    op.num_groups = 2;
    op.joins.push_back({2, joined});
  }
  int64_t Value(std::vector<int32_t> program, Sizes* sizes) {
    program.push_back(kAnyopEnd);
    int64_t value = -999;
    return sizes->Evaluate(program.data(), &value) ? value : -999;
  }
};

bool Match(Sizes* sizes, const ShapeProgram& program, const std::vector<int64_t>& shape) {
  return sizes->Match(program, static_cast<int>(shape.size()), shape.data());
}

TEST(LettersBindOnceAndCompare) {
  Fixture f;
  Sizes sizes(&f.op, &f.arena);
  const int32_t terms[] = {0};
  const ShapeProgram rows = {0, 1, 0, false, terms}, one = {1, 0, -1, false, terms};
  const std::vector<int64_t> x = {2, 3, 64};
  CHECK(Match(&sizes, rows, x));
  CHECK_EQ(sizes.Symbol(0), 64);
  CHECK_EQ(sizes.GroupRank(0), 2);
  CHECK(Match(&sizes, one, {64}));
  CHECK(!Match(&sizes, one, {63}));
  CHECK(!Match(&sizes, one, {64, 1}));
  CHECK(!Match(&sizes, one, {}));
  CHECK(!Match(&sizes, rows, {2, 4, 64}));
  CHECK_EQ(sizes.KnownText(one), " with D=64");
  int64_t product;
  CHECK(sizes.Numel(0, &product) && product == 6);
}

TEST(LinearTermsAreSolvedAndCompared) {
  Fixture f;
  f.code[0] = 1, f.code[1] = 2, f.code[2] = 1;  // 2*B + 1
  const int32_t terms[] = {~0};
  const ShapeProgram program = {1, 0, -1, false, terms};
  for (int64_t size : {0, 2, 4}) {
    Sizes sizes(&f.op, &f.arena);
    CHECK(!Match(&sizes, program, {size}));
  }
  Sizes sizes(&f.op, &f.arena);
  CHECK(Match(&sizes, program, {7}));
  CHECK_EQ(sizes.Symbol(1), 3);
  CHECK(Match(&sizes, program, {7}));
  CHECK(!Match(&sizes, program, {9}));
  int64_t shape[anyop::kMaxRank];
  CHECK_EQ(sizes.Build(program, shape), 1);
  CHECK_EQ(shape[0], 7);
}

TEST(ExpressionsFollowPython) {
  Fixture f;
  Sizes sizes(&f.op, &f.arena);
  sizes.SetSymbol(0, 10);
  sizes.SetSymbol(2, -7);
  auto two = [&](int32_t opcode, int32_t a, int32_t b) {
    return f.Value({kAnyopConst, a, kAnyopConst, b, opcode}, &sizes);
  };
  CHECK_EQ(two(kAnyopFloorDiv, -7, 2), -4);
  CHECK_EQ(two(kAnyopFloorDiv, 7, -2), -4);
  CHECK_EQ(two(kAnyopCeilDiv, 7, 2), 4);
  CHECK_EQ(two(kAnyopCeilDiv, -7, 2), -3);
  CHECK_EQ(two(kAnyopCeilDiv, 128, 128), 1);
  CHECK_EQ(two(kAnyopMod, -7, 3), 2);
  CHECK_EQ(two(kAnyopMod, 7, -3), -2);
  CHECK_EQ(two(kAnyopMin, 3, 4), 3);
  CHECK_EQ(two(kAnyopMax, 3, 4), 4);
  CHECK_EQ(two(kAnyopLe, 3, 3), 1);
  CHECK_EQ(two(kAnyopLt, 3, 3), 0);
  CHECK_EQ(two(kAnyopNe, 3, 4), 1);
  CHECK_EQ(two(kAnyopAnd, 1, 0), 0);
  CHECK_EQ(two(kAnyopOr, 1, 0), 1);
  CHECK_EQ(f.Value({kAnyopSymbol, 2, kAnyopSymbol, 0, kAnyopAdd}, &sizes), 3);
  CHECK_EQ(two(kAnyopFloorDiv, 1, 0), -999);
  CHECK_EQ(two(kAnyopMod, 1, 0), -999);
  CHECK_EQ(f.Value({kAnyopSymbol, 1}, &sizes), -999);  // unbound
  sizes.SetSymbol(0, INT64_MAX);
  CHECK_EQ(f.Value({kAnyopSymbol, 0, kAnyopConst, 1, kAnyopAdd}, &sizes), -999);
  CHECK_EQ(f.Value({kAnyopSymbol, 0, kAnyopConst, 2, kAnyopMul}, &sizes), -999);
}

// Parameters: a str at byte 8 of the arguments, and a tensor.
TEST(TextsAreCompared) {
  Fixture f;
  f.op.params.resize(2);
  f.op.params[0].name = "mode", f.op.params[0].kind = kAnyopStr, f.op.params[0].offset = 8;
  f.op.params[1].name = "x", f.op.params[1].kind = kAnyopTensor;
  const uint8_t dtypes[] = {kAnyopNoDtype, kAnyopInt8};
  const auto compare = [&](const std::string& given, int param, const std::string& with) {
    struct {
      int64_t base;
      AnyopString text;
    } args = {0, {given.data(), static_cast<int64_t>(given.size())}};
    std::vector<int32_t> program = {kAnyopConst, 2, kAnyopTextIs, param,
                                    static_cast<int32_t>(with.size())};
    for (size_t at = 0; at < with.size(); at += 4) {
      program.push_back(0);
      std::memcpy(&program.back(), with.data() + at, std::min<size_t>(4, with.size() - at));
    }
    program.insert(program.end(), {kAnyopMul, kAnyopConst, 7, kAnyopAdd});
    Sizes sizes(&f.op, &f.arena, reinterpret_cast<const char*>(&args), dtypes);
    const int64_t value = f.Value(program, &sizes);
    CHECK(value == 7 || value == 9);
    program.push_back(kAnyopEnd);
    CHECK_EQ(sizes.KnownText(program.data()),
             param               ? std::string(" with dtype(x)=int8")
             : given.size() > 40 ? " with mode of " + std::to_string(given.size()) + " bytes"
                                 : " with mode='" + given + "'");
    return value == 9;
  };
  for (const std::string text :
       {"", "s", "sum", "mean", "means", "\xc3\xa4\xff\x80", "a longer one"}) {
    CHECK(compare(text, 0, text));
    CHECK(!compare(text, 0, text + "x"));
    CHECK(!compare(text + "x", 0, text));
    CHECK(!compare(std::string(41, 'y'), 0, text));
  }
  CHECK(!compare("mean", 0, "meaN"));
  CHECK(compare("", 1, "int8"));
  CHECK(!compare("", 1, "int16"));
}

TEST(GroupsBroadcastTogether) {
  Fixture f;
  const ShapeProgram x = {0, 0, 0, false, nullptr}, y = {0, 0, 1, false, nullptr},
                     out = {0, 0, 2, false, nullptr};
  const std::vector<int64_t> a = {4, 1, 3}, b = {5, 1}, c = {2}, empty = {0};
  int64_t shape[anyop::kMaxRank];
  {
    Sizes sizes(&f.op, &f.arena);
    CHECK(Match(&sizes, x, a) && Match(&sizes, y, b));
    CHECK_EQ(sizes.JoinGroups(), -1);
    CHECK_EQ(sizes.Build(out, shape), 3);
    CHECK(shape[0] == 4 && shape[1] == 5 && shape[2] == 3);
  }
  {
    Sizes sizes(&f.op, &f.arena);
    CHECK(Match(&sizes, x, a) && Match(&sizes, y, c));
    CHECK_EQ(sizes.JoinGroups(), 0);
  }
  {
    Sizes sizes(&f.op, &f.arena);
    CHECK(Match(&sizes, x, b) && Match(&sizes, y, empty));
    CHECK_EQ(sizes.JoinGroups(), -1);
    CHECK_EQ(sizes.Build(out, shape), 2);
    CHECK(shape[0] == 5 && shape[1] == 0);
  }
}

TEST(AnInputMayHaveTheJoinedShape) {
  Fixture f;
  const ShapeProgram x = {0, 0, 0, false, nullptr}, y = {0, 0, 1, false, nullptr};
  const ShapeProgram grad = {0, 0, 2, false, nullptr};
  const std::vector<int64_t> a = {4, 1, 3}, b = {5, 1};
  const auto join = [&](const std::vector<int64_t>& given) {
    Sizes sizes(&f.op, &f.arena);
    CHECK(Match(&sizes, grad, given) && Match(&sizes, x, a) && Match(&sizes, y, b));
    return sizes.JoinGroups();
  };
  CHECK_EQ(join({4, 5, 3}), -1);
  CHECK_EQ(join({4, 1, 3}), 0);
  CHECK_EQ(join({1, 4, 5, 3}), 0);
}

TEST(ExpandAcceptsWhatBroadcasts) {
  Fixture f;
  Sizes sizes(&f.op, &f.arena);
  sizes.SetSymbol(0, 3);
  sizes.SetSymbol(1, 2);
  const int32_t terms[] = {1, 0};
  const ShapeProgram mask = {2, 0, -1, true, terms};
  CHECK(Match(&sizes, mask, {2, 3}));
  CHECK(Match(&sizes, mask, {1, 3}));
  CHECK(Match(&sizes, mask, {3}));
  CHECK(Match(&sizes, mask, {}));
  CHECK(!Match(&sizes, mask, {2, 2}));
  CHECK(!Match(&sizes, mask, {1, 2, 3}));
}

}  // namespace
