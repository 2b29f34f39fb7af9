// SPDX-License-Identifier: Apache-2.0
// The C ABI with a library of this program's own: values, results made and given, errors,
// registration.
#include <cstring>
#include <new>
#include <string>

#include "anyop/anyop.h"
#include "tests/check.h"

namespace {

// "test::repeat(Tensor x, int k=2, str mode='sum', float[] more=None) -> (Tensor out, Tensor?
// rows)"
struct RepeatArgs {
  AnyopArgs base;
  const AnyopTensor* x;
  int64_t k;
  AnyopString mode;
  AnyopFloatList more;
  AnyopTensor* out;
  AnyopTensor* rows;
  int64_t D;
  int64_t numel;
};

int32_t Repeat(const void* raw, AnyopCall* call) {
  const auto* args = static_cast<const RepeatArgs*>(raw);
  const std::string mode = args->mode.data;
  if (mode == "throw") throw std::bad_alloc();
  if (mode == "odd") throw 42;  // NOLINT(bugprone-std-exception-baseclass)
  if (mode == "quiet") return kAnyopValueError;
  if (mode == "unknown") return 77;
  if (mode == "big" && !call->workspace(call, int64_t{1} << 62)) return kAnyopOutOfMemory;
  if (mode != "sum") return call->fail(call, kAnyopValueError, "mode must be sum");
  auto* x = static_cast<const float*>(args->x->data);
  auto* out = static_cast<float*>(args->out->data);
  for (int64_t i = 0; i < args->numel * args->D; ++i) {
    for (int64_t k = 0; k < args->k; ++k)
      out[i * args->k + k] = x[i] + static_cast<float>(args->more.count ? args->more.data[0] : 0);
  }
  if (args->rows) static_cast<float*>(args->rows->data)[0] = static_cast<float>(args->numel);
  return kAnyopOk;
}

constexpr uint64_t kFloat32 = uint64_t{1} << kAnyopFloat32;
const int32_t kCode[] = {0, 1, 0, 0, 0, /* word 5: D*k */ 0, 1, 0,  0, 64 + 10, /* word 10 */ 2,
                         0, 2, 1, 7, 0, /* 16: 1 */ 1,       0, -1, 0, 64 + 21, 1,
                         1, 0};
const AnyopParam kParams[] = {
    {"x",
     "* D",
     offsetof(RepeatArgs, x),
     0,
     0,
     kAnyopTensor,
     0,
     0,
     0,
     -1,
     -1,
     kFloat32,
     {0},
     -1,
     -1},
    {"k",
     nullptr,
     offsetof(RepeatArgs, k),
     -1,
     kAnyopHasDefault,
     kAnyopInt,
     0,
     0,
     0,
     -1,
     -1,
     0,
     {2},
     -1,
     -1},
    {"mode",
     nullptr,
     offsetof(RepeatArgs, mode),
     -1,
     kAnyopHasDefault,
     kAnyopStr,
     0,
     0,
     0,
     -1,
     -1,
     0,
     {},
     -1,
     -1},
    {"more",
     nullptr,
     offsetof(RepeatArgs, more),
     -1,
     kAnyopOptional | kAnyopList,
     kAnyopFloat,
     0,
     0,
     0,
     -1,
     -1,
     0,
     {0},
     -1,
     -1},
    {"out",
     "* D*k",
     offsetof(RepeatArgs, out),
     5,
     kAnyopOutput,
     kAnyopTensor,
     0,
     0,
     0,
     0,
     -1,
     0,
     {0},
     -1,
     -1},
    {"rows",
     "1",
     offsetof(RepeatArgs, rows),
     16,
     kAnyopOutput | kAnyopOptional,
     kAnyopTensor,
     0,
     0,
     0,
     0,
     -1,
     0,
     {0},
     -1,
     -1},
};
const char* const kSymbols[] = {"D", "k"};
const uint16_t kAttributes[] = {1};
const AnyopKernelEntry kKernels[] = {
    {"cpu", "api_test.cc", Repeat, 1, 0, nullptr, nullptr, nullptr, nullptr, 0, 0}};

AnyopOp Table() {
  static AnyopParam params[6];
  std::memcpy(params, kParams, sizeof params);
  params[2].value.s = "sum";
  AnyopOp op = {};
  op.size = sizeof op;
  op.abi_version = ANYOP_ABI_VERSION;
  op.name_space = "test";
  op.name = "repeat";
  op.schema =
      "test::repeat(Tensor x, int k=2, str mode='sum', float[]? more=None) -> (Tensor out, Tensor? "
      "rows)";
  op.doc = op.metadata = "";
  op.params = params;
  op.code = kCode;
  op.symbols = kSymbols;
  op.attributes = kAttributes;
  op.kernels = kKernels;
  op.param_size = sizeof(AnyopParam);
  op.kernel_size = sizeof(AnyopKernelEntry);
  op.num_inputs = 4;
  op.num_outputs = 2;
  op.args_size = sizeof(RepeatArgs);
  op.sizes_offset = offsetof(RepeatArgs, D);
  op.code_words = sizeof kCode / sizeof *kCode;
  op.num_symbols = 2;
  op.num_sizes = 1;
  op.num_groups = 1;
  op.num_kernels = 1;
  return op;
}

const AnyopOp table = Table();
const AnyopOp* const ops[] = {&table};
const AnyopLibrary library = {sizeof library, ANYOP_ABI_VERSION, "test", ops, 1, 0};

const AnyopOperator* Operator() {
  CHECK_EQ(AnyopRegisterLibrary(&library), int{kAnyopOk});
  return AnyopFindOperator("test.repeat");
}

struct Input {
  float data[6] = {0, 1, 2, 3, 4, 5};
  int64_t shape[2] = {2, 3};
  AnyopTensor tensor = {data, 1, 0, 2, 2, 32, 1, shape, nullptr, 0};
};

int32_t Call(AnyopValue* values, int32_t count) {
  return AnyopInvoke(Operator(), values, count, nullptr);
}

bool Says(const char* part) {
  const bool says = std::strstr(AnyopLastError(), part);
  if (!says) std::printf("found \"%s\", expected \"%s\"\n", AnyopLastError(), part);
  return says;
}

AnyopValue TensorValue(AnyopTensor* tensor) {
  AnyopValue value = {};
  value.kind = kAnyopTensorValue;
  value.as.tensor = tensor;
  return value;
}

TEST(ResultsAreMadeAndGiven) {
  Input in;
  AnyopValue values[6] = {TensorValue(&in.tensor)};
  CHECK_EQ(Call(values, 6), int{kAnyopOk});
  AnyopTensor* made = values[4].as.tensor;
  CHECK(made->ndim == 2 && made->shape[0] == 2 && made->shape[1] == 6 && made->strides[0] == 6);
  CHECK_EQ(reinterpret_cast<uintptr_t>(made->data) % 64, uintptr_t{0});
  CHECK_EQ(static_cast<float*>(made->data)[11], 5.0f);
  CHECK_EQ(values[5].kind, int{kAnyopNoValue});  // optional, and nobody asked
  AnyopValue again[6] = {TensorValue(&in.tensor)};
  again[4] = values[4];
  again[5].kind = kAnyopTensorValue;
  const double more[] = {0.5};
  again[3].kind = kAnyopFloatsValue;
  again[3].as.floats = {more, 1};
  CHECK_EQ(Call(again, 6), int{kAnyopOk});
  CHECK_EQ(static_cast<float*>(made->data)[11], 5.5f);
  CHECK_EQ(static_cast<float*>(again[5].as.tensor->data)[0], 2.0f);
  AnyopDeleteTensor(made);
  AnyopDeleteTensor(again[5].as.tensor);
  AnyopDeleteTensor(nullptr);
}

TEST(MistakesHaveTexts) {
  Input in;
  AnyopValue values[6] = {};
  CHECK_EQ(Call(values, 6), int{kAnyopTypeError});
  CHECK(Says("test.repeat: x is missing"));
  values[0] = TensorValue(&in.tensor);
  CHECK_EQ(Call(values, 4), int{kAnyopTypeError});
  CHECK(Says("the result out needs a place"));
  CHECK_EQ(Call(values, 7), int{kAnyopTypeError});
  CHECK(Says("at most 6"));
  CHECK_EQ(Call(nullptr, 6), int{kAnyopTypeError});
  values[1].kind = kAnyopFloatValue;
  CHECK_EQ(Call(values, 6), int{kAnyopTypeError});
  CHECK(Says("k has the value kind 3"));
  values[1].kind = kAnyopIntValue;
  values[1].as.i = -1;
  CHECK_EQ(Call(values, 6), int{kAnyopValueError});
  CHECK(Says("the shape (* D*k) of out has no value with D=3, k=-1"));
  values[1].as.i = int64_t{1} << 62;
  CHECK_EQ(Call(values, 6), int{kAnyopValueError});
  CHECK(Says("has no value"));
  values[1].as.i = int64_t{1} << 60;
  CHECK_EQ(Call(values, 6), int{kAnyopValueError});
  CHECK(Says("overflows"));
  values[1].as.i = int64_t{1} << 57;
  CHECK_EQ(Call(values, 6), int{kAnyopOutOfMemory});
  CHECK_EQ(AnyopInvoke(nullptr, values, 6, nullptr), int{kAnyopValueError});
  CHECK(!AnyopFindOperator("test.nothing") && Says("no operator is named test.nothing"));
  CHECK(!AnyopFindOperator(nullptr));
  CHECK(AnyopFindOperator("test::repeat") == Operator());
}

// What DLPack can say and no memory is.
TEST(MalformedTensorsAreRefused) {
  struct {
    const char* says;
    void (*spoil)(AnyopTensor*);
  } cases[] = {
      {"points to nothing", [](AnyopTensor* t) { t->shape = nullptr; }},
      {"has -1 dimensions", [](AnyopTensor* t) { t->ndim = -1; }},
      {"dimensions", [](AnyopTensor* t) { t->ndim = INT32_MAX; }},
      {"dimensions", [](AnyopTensor* t) { t->ndim = INT32_MIN; }},
      {"has no storage", [](AnyopTensor* t) { t->data = nullptr; }},
      {"has no storage", [](AnyopTensor* t) { t->data = nullptr, t->byte_offset = 64; }},
      {"multiple of", [](AnyopTensor* t) { t->byte_offset = 1; }},
      {"has dtype", [](AnyopTensor* t) { t->dtype_lanes = 0; }},
      {"has dtype", [](AnyopTensor* t) { t->dtype_lanes = 4; }},
      {"has dtype", [](AnyopTensor* t) { t->dtype_bits = 0; }},
      {"has dtype", [](AnyopTensor* t) { t->dtype_bits = 4; }},
      {"has dtype", [](AnyopTensor* t) { t->dtype_code = 255; }},
      {"results on the CPU", [](AnyopTensor* t) { t->device_type = -1; }},
      {"results on the CPU", [](AnyopTensor* t) { t->device_type = 0; }},
      {"results on the CPU", [](AnyopTensor* t) { t->device_type = INT32_MAX; }},
      {"negative", [](AnyopTensor* t) { t->shape[0] = -1; }},
      {"negative", [](AnyopTensor* t) { t->shape[1] = INT64_MIN; }},
      {"overflow", [](AnyopTensor* t) { t->shape[0] = INT64_MAX; }},
      {"overflow", [](AnyopTensor* t) { t->shape[0] = t->shape[1] = int64_t{1} << 32; }},
      {"contiguous", [](AnyopTensor* t) { t->strides[0] = 0; }},
      {"overflow", [](AnyopTensor* t) { t->strides[1] = INT64_MAX; }},
      {"overflow", [](AnyopTensor* t) { t->strides[0] = INT64_MIN; }},
      {"beyond all memory", [](AnyopTensor* t) { t->strides[0] = (int64_t{1} << 61) - 8; }},
      {"beyond all memory", [](AnyopTensor* t) { t->strides[0] = 8 - (int64_t{1} << 61); }},
  };
  for (const auto& c : cases) {
    Input in;
    int64_t strides[2] = {3, 1};
    in.tensor.strides = strides;
    c.spoil(&in.tensor);
    AnyopValue values[6] = {TensorValue(&in.tensor)};
    const int32_t status = Call(values, 6);
    CHECK(status == kAnyopValueError || status == kAnyopTypeError);
    CHECK(Says(c.says));
  }
}

TEST(WhatAKernelDoesWrongStaysInside) {
  Input in;
  const struct {
    const char* mode;
    int status;
    const char* text;
  } cases[] = {
      {"throw", kAnyopOutOfMemory, "out of memory"},
      {"odd", kAnyopInternalError, "unknown kind"},
      {"quiet", kAnyopValueError, "without a message"},
      {"unknown", kAnyopInternalError, "unknown status 77"},
      {"big", kAnyopOutOfMemory, "out of memory"},
      {"else", kAnyopValueError, "test.repeat: mode must be sum"},
  };
  for (const auto& c : cases) {
    AnyopValue values[6] = {TensorValue(&in.tensor)};
    values[2].kind = kAnyopStringValue;
    values[2].as.s = c.mode;
    CHECK_EQ(Call(values, 6), c.status);
    CHECK(Says(c.text));
    CHECK_EQ(values[4].kind, int{kAnyopNoValue});
  }
}

TEST(LibrariesComeWholeOrNotAtAll) {
  const AnyopOp broken = [] {
    AnyopOp op = Table();
    op.name = "broken";
    op.args_size = 8;
    return op;
  }();
  const AnyopOp fresh = [] {
    AnyopOp op = Table();
    op.name = "fresh";
    return op;
  }();
  const AnyopOp* const mixed[] = {&fresh, &broken};
  const AnyopLibrary bad = {sizeof bad, ANYOP_ABI_VERSION, "bad", mixed, 2, 0};
  const int32_t before = AnyopListOperators(nullptr, 0);
  CHECK_EQ(AnyopRegisterLibrary(&bad), int{kAnyopValueError});
  CHECK(Says("broken: the table"));
  CHECK(!AnyopFindOperator("test.fresh"));
  const AnyopLibrary future = {sizeof future, ANYOP_ABI_VERSION + 1, "future", ops, 1, 0};
  CHECK_EQ(AnyopRegisterLibrary(&future), int{kAnyopValueError});
  CHECK(Says("ABI version 2"));
  CHECK_EQ(AnyopRegisterLibrary(nullptr), int{kAnyopValueError});
  CHECK_EQ(AnyopListOperators(nullptr, 0), before);
  CHECK_EQ(AnyopLoadLibrary("/nowhere/lib.so"), int{kAnyopValueError});
  CHECK_EQ(AnyopLoadLibrary(nullptr), int{kAnyopValueError});
}

TEST(TensorsOfTheHost) {
  AnyopTensor* t;
  const int64_t shape[] = {3, 0, 2}, negative[] = {-1},
                huge[] = {int64_t{1} << 40, int64_t{1} << 40};
  CHECK_EQ(AnyopNewTensor(kAnyopInt8, 3, shape, &t), int{kAnyopOk});
  AnyopDeleteTensor(t);
  CHECK_EQ(AnyopNewTensor(kAnyopFloat64, 0, nullptr, &t), int{kAnyopOk});
  AnyopDeleteTensor(t);
  CHECK_EQ(AnyopNewTensor(kAnyopInt8, 1, negative, &t), int{kAnyopValueError});
  CHECK_EQ(AnyopNewTensor(kAnyopInt8, 2, huge, &t), int{kAnyopValueError});
  CHECK_EQ(AnyopNewTensor(kAnyopInt8, 33, shape, &t), int{kAnyopValueError});
  CHECK_EQ(AnyopNewTensor(kAnyopNoDtype, 1, shape, &t), int{kAnyopValueError});
}

}  // namespace
