// SPDX-License-Identifier: Apache-2.0
// Calls of ATen by anyop/aten.h, in a program without Python; aten_header_test.py builds it.
#include <anyop/aten.h>
#include <anyop/ops.h>

#include <complex>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/check.h"

namespace aten = anyop::aten;
using aten::Tensor;

namespace {

template <typename T>
std::vector<T> Values(const Tensor& tensor) {
  const Tensor plain = aten::contiguous(tensor);
  const T* data = plain.data<T>();
  return {data, data + plain.numel()};
}

using Floats = std::vector<float>;
using Ints = std::vector<int64_t>;

// The text of the failure of a call; status is its kind.
template <typename Call>
std::string Failure(int32_t status, const Call& call) {
  try {
    call();
  } catch (const anyop::Error& error) {
    CHECK_EQ(error.status(), status);
    return error.what();
  }
  return "no failure";
}

bool Has(const std::string& text, const char* part) { return text.find(part) != text.npos; }

struct Rows {
  float data[6] = {1, -2, 3, -4, 5, -6};
  Tensor x = Tensor::View(data, {2, 3});
};

}  // namespace

TEST(BeforeOpen) {
  Rows rows;
  CHECK(Has(Failure(kAnyopValueError, [&] { aten::relu(rows.x); }), "AnyopAtenOpen"));
  aten::Open();
  aten::Open();  // the same again
}

// argv has no way here: a file with each schema that the header was made from.
TEST(Schemas) {
  std::ifstream file(std::getenv("ANYOP_TEST_SCHEMAS"));
  int64_t found = 0;
  for (std::string schema; std::getline(file, schema); ++found) {
    const AnyopAtenOp* op = AnyopAtenFind(schema.substr(0, schema.find('(')).c_str());
    CHECK_EQ(op ? AnyopAtenSchema(op) : AnyopLastError(), schema);
  }
  CHECK(found > 3000);
}

TEST(Overloads) {
  Rows rows;
  CHECK(Values<float>(aten::add(rows.x, rows.x)) == Floats({2, -4, 6, -8, 10, -12}));
  CHECK(Values<float>(aten::add(rows.x, rows.x, 0.5)) == Floats({1.5, -3, 4.5, -6, 7.5, -9}));
  CHECK(Values<float>(aten::add(rows.x, 1)) == Floats({2, -1, 4, -3, 6, -5}));
  CHECK(Values<float>(aten::add_Scalar(rows.x, 1, 2)) == Floats({3, 0, 5, -2, 7, -4}));
  CHECK(Values<float>(aten::relu(rows.x)) == Floats({1, 0, 3, 0, 5, 0}));
  CHECK(Values<float>(aten::relu_default(rows.x)) == Floats({1, 0, 3, 0, 5, 0}));
  CHECK(Values<float>(aten::pow(2, rows.x)) == Floats({2, .25, 8, .0625, 32, .015625}));
  CHECK(Values<float>(aten::sum(rows.x, 1)) == Floats({2, -5}));
  CHECK(Values<float>(aten::sum(rows.x)) == Floats({-3}));
  CHECK(aten::std(rows.x, 1, 0).shape() == Ints({2}));  // a dim and a correction, no flags
  CHECK(Values<float>(aten::sum(rows.x, {0, 1}, true)) == Floats({-3}));
  CHECK(aten::sum(rows.x, {}, false, "float64").dtype() == kAnyopFloat64);
}

TEST(SeveralResults) {
  Rows rows;
  const auto best = aten::topk(rows.x, 2);
  CHECK(Values<float>(best.values) == Floats({3, 1, 5, -4}));
  CHECK(Values<int64_t>(best.indices) == Ints({2, 0, 1, 0}));
  const auto [values, indices] = aten::max(rows.x, 1);
  CHECK(Values<float>(values) == Floats({3, 5}));
  CHECK(Values<int64_t>(indices) == Ints({2, 1}));
  const std::vector<Tensor> parts = aten::split(rows.x, 2, 1);
  CHECK_EQ(parts.size(), size_t{2});
  CHECK(Values<float>(parts[1]) == Floats({3, -6}));
  CHECK(aten::equal(parts[0], parts[0]) && !aten::equal(parts[0], parts[1]));
  CHECK_EQ(aten::size(rows.x, 1), 3);
  CHECK_EQ(aten::item(aten::sum(rows.x)).real(), -3.0);
}

TEST(Lists) {
  Rows rows;
  CHECK(Values<float>(aten::cat({rows.x, aten::neg(rows.x)}, 1)) ==
        Floats({1, -2, 3, -1, 2, -3, -4, 5, -6, 4, -5, 6}));
  const aten::Tensors kept = {aten::neg(rows.x), rows.x};  // holds what it is made of
  CHECK(aten::cat(kept).shape() == Ints({4, 3}));
  const std::vector<Tensor> none;
  CHECK(Has(Failure(kAnyopValueError, [&] { aten::cat(none); }), "cat: "));
  const Ints sizes(12, 1);  // more than lie in the argument itself
  CHECK(aten::ones(sizes).shape() == sizes);
  CHECK(aten::ones({}).shape().empty());
  int64_t at[] = {1, 0};
  const Tensor index = Tensor::View(at, {2});
  CHECK(Values<float>(aten::index(rows.x, {aten::None, index})) == Floats({-2, 1, 5, -4}));
}

TEST(Factories) {
  const Tensor zeros = aten::zeros({2, 3}, "int32");
  CHECK(zeros.dtype() == kAnyopInt32 && zeros.shape() == Ints({2, 3}));
  CHECK(Values<int32_t>(zeros) == std::vector<int32_t>(6, 0));
  CHECK(Values<double>(aten::full({2}, 2.5, kAnyopFloat64)) == std::vector<double>({2.5, 2.5}));
  CHECK(Values<int64_t>(aten::arange(3)) == Ints({0, 1, 2}));
  const std::string device = "cpu";
  CHECK_EQ(aten::empty({4}, "float16", "strided", device).view().device_type, 1);
}

TEST(Random) {
  const Floats one = Values<float>(aten::rand({5}, 7));
  CHECK(one == Values<float>(aten::rand({5}, 7)) && one != Values<float>(aten::rand({5}, 8)));
}

TEST(Written) {
  Rows rows;
  float out[6] = {};
  const Tensor given = Tensor::View(out, {2, 3});
  aten::add_out(given, rows.x, rows.x);
  CHECK_EQ(out[4], 10);
  CHECK(aten::mul_(rows.x, 2).data() == rows.data && rows.data[0] == 2);
  const Tensor small = Tensor::View(out, {2});
  CHECK(Has(Failure(kAnyopValueError, [&] { aten::add_out(small, rows.x, rows.x); }), "add.out: "));
  const float fixed[] = {1, 2};
  CHECK(Has(Failure(kAnyopValueError, [&] { aten::neg_(Tensor::View(fixed, {2})); }), "read-only"));
  CHECK_EQ(fixed[0], 1);
}

TEST(Views) {
  Tensor column, copy;
  const float* data = nullptr;
  {
    const Tensor base = aten::mul(aten::ones({2, 3}), 4);
    data = base.data<float>();
    column = aten::select(base, 1, 1);
    copy = column;
  }
  CHECK(column.data<float>() == data + 1 && column.strides() == Ints({3}));
  CHECK(Values<float>(copy) == Floats({4, 4}));
  {
    const anyop::Tensor base = anyop::Tensor::New(kAnyopFloat32, {4});
    for (int i = 0; i < 4; ++i) base.data<float>()[i] = static_cast<float>(i);
    column = aten::slice(base, 0, 1, 3);  // torch keeps base
  }
  CHECK(Values<float>(column) == Floats({1, 2}));
  const anyop::Tensor plain = aten::reshape(column, {2, 1}).plain();
  CHECK_EQ(anyop::softmax(plain).data<float>()[1], 1);
}

TEST(Complex) {
  std::complex<float> data[] = {{1, 2}, {3, -4}};
  const Tensor x = Tensor::View(data, {2});
  const Tensor y = aten::mul(x, std::complex<double>(0, 1));
  CHECK(Values<std::complex<float>>(y)[1] == std::complex<float>(4, 3));
  CHECK(aten::conj(x).data<std::complex<float>>()[0] == std::complex<float>(1, -2));
  CHECK(aten::item(x.numel() ? aten::select(x, 0, 0) : x).imag() == 2);
}

TEST(Errors) {
  Rows rows;
  const Tensor none;
  CHECK(Has(Failure(kAnyopRuntimeError, [&] { aten::matmul(rows.x, rows.x); }), "matmul: "));
  CHECK(Has(Failure(kAnyopIndexError, [&] { aten::sum(rows.x, 5); }), "sum"));
  CHECK(Has(Failure(kAnyopValueError, [&] { aten::zeros({2}, "float33"); }), "float33"));
  CHECK(Has(Failure(kAnyopTypeError, [&] { rows.x.data<double>(); }), "data"));
  CHECK(Has(Failure(kAnyopValueError, [&] { none.view(); }), "None"));
  CHECK(Has(Failure(kAnyopTypeError, [&] { aten::mul(rows.x, none); }), "other is None"));
  aten::Op changed("relu(Tensor self, int other) -> Tensor");
  const AnyopAtenValue value = rows.x;
  AnyopAtenValue result;
  CHECK(Has(Failure(kAnyopValueError, [&] { changed.Call(&value, 1, &result); }), "another torch"));
}

TEST(AsTorch) {
  const Tensor weight = aten::requires_grad_(aten::ones({2}));
  CHECK(aten::is_leaf(aten::mul(weight, 2)));
  {
    const aten::Options scope = aten::Options::AsTorch();
    CHECK(!aten::is_leaf(aten::mul(weight, 2)));  // there is a gradient to go back by
    std::thread([&] { CHECK(aten::is_leaf(aten::mul(weight, 2))); }).join();
  }
  CHECK(aten::is_leaf(aten::mul(weight, 2)));
}

TEST(Threads) {
  Rows rows;
  int64_t wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&rows, &wrong, t] {
      for (int i = 0; i < 2000; ++i) {
        const Tensor y = aten::add(rows.x, t);
        if (y.data<float>()[5] != static_cast<float>(t - 6))
          __atomic_fetch_add(&wrong, 1, __ATOMIC_RELAXED);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(wrong, 0);
}
