// SPDX-License-Identifier: Apache-2.0
// An operator for tests of routes: which(Tensor x) -> Tensor writes the number of the kernel that
// ran.
#pragma once

#include <cstring>
#include <string>

#include "anyop/anyop.h"

namespace which {

struct Args {
  AnyopArgs base;
  AnyopTensor* x;
  AnyopTensor* out;
  int64_t D;
};

template <int kNumber>
int32_t Kernel(const void* raw, AnyopCall* call) {
  if (call->context && *static_cast<int*>(call->context) != kNumber) return kAnyopInternalError;
  *static_cast<float*>(static_cast<const Args*>(raw)->out->data) = kNumber;
  return kAnyopOk;
}

constexpr uint64_t kDtypes = uint64_t{1} << kAnyopFloat32 | uint64_t{1} << kAnyopFloat64;
inline const int32_t code[] = {1, 0, -1, 0, 0, /* word 5: 1 */ 1, 0, -1, 0, 64 + 10, 1, 1, 0};
inline const AnyopParam params[] = {{"x",
                                     "D",
                                     offsetof(Args, x),
                                     0,
                                     0,
                                     kAnyopTensor,
                                     kAnyopStrided,
                                     0,
                                     0,
                                     -1,
                                     -1,
                                     kDtypes,
                                     {0},
                                     -1,
                                     -1},
                                    {"out",
                                     "1",
                                     offsetof(Args, out),
                                     5,
                                     kAnyopOutput,
                                     kAnyopTensor,
                                     0,
                                     0,
                                     0,
                                     0,
                                     -1,
                                     uint64_t{1} << kAnyopFloat32,
                                     {0},
                                     -1,
                                     -1}};
inline const char* const symbols[] = {"D"};
inline const AnyopKernelEntry kernels[] = {
    {"cpu", "a.cc", Kernel<1>, 1, 0, nullptr, nullptr, nullptr, nullptr, kAnyopDeterministic, 0},
    {"cpu", "b.cc", Kernel<2>, 1, 5, "cpu_long", "D>=1000", nullptr, nullptr, 0, 0},
    {"far", "c.cc", nullptr, 1, -100, nullptr, nullptr, "nobody", "{}", 0, 0}};

inline AnyopOp Table(const char* name) {
  AnyopOp op = {};
  op.size = sizeof op;
  op.abi_version = ANYOP_ABI_VERSION;
  op.name_space = "test";
  op.name = name;
  op.schema = "test::which(Tensor x) -> Tensor";
  op.doc = op.metadata = "";
  op.params = params;
  op.code = code;
  op.symbols = symbols;
  op.kernels = kernels;
  op.param_size = sizeof(AnyopParam);
  op.kernel_size = sizeof(AnyopKernelEntry);
  op.num_inputs = op.num_outputs = 1;
  op.args_size = sizeof(Args);
  op.sizes_offset = offsetof(Args, D);
  op.code_words = sizeof code / sizeof *code;
  op.num_symbols = op.num_sizes = 1;
  op.num_kernels = sizeof kernels / sizeof *kernels;
  return op;
}

inline const AnyopOperator* Operator() {
  static const AnyopOp table = Table("which"), other = Table("other");
  static const AnyopOp* const ops[] = {&table, &other};
  static const AnyopLibrary library = {sizeof library, ANYOP_ABI_VERSION, "test", ops, 2, 0};
  static const int32_t status = AnyopRegisterLibrary(&library);
  return status == kAnyopOk ? AnyopFindOperator("test.which") : nullptr;
}

// One call: the number of the kernel, or minus the status.
struct Caller {
  explicit Caller(int64_t size = 4, bool is_double = false) : shape{size} {
    x = {data, 1, 0, 1, 2, static_cast<uint8_t>(is_double ? 64 : 32), 1, shape, nullptr, 0};
    out = {&found, 1, 0, 1, 2, 32, 1, one, nullptr, 0};
    values[0].kind = values[1].kind = kAnyopTensorValue;
    values[0].as.tensor = &x;
    values[1].as.tensor = &out;
  }
  int Run(const char* use = nullptr) {
    const AnyopInvokeOptions options = {sizeof options, 0, nullptr, use, nullptr, nullptr};
    found = 0;
    x.strides = out.strides = nullptr;
    const int32_t status = AnyopInvoke(Operator(), values, 2, &options);
    return status == kAnyopOk ? static_cast<int>(found) : -status;
  }
  std::string Explain(const char* use = nullptr) {
    const AnyopInvokeOptions options = {sizeof options, 0, nullptr, use, nullptr, nullptr};
    char text[4096] = "";
    int64_t length = 0;
    x.strides = out.strides = nullptr;
    AnyopExplain(Operator(), values, 2, &options, text, sizeof text, &length);
    return length <= static_cast<int64_t>(sizeof text) ? text : "too long";
  }

  alignas(64) double data[2048] = {};
  float found = 0;
  int64_t shape[1], one[1] = {1};
  AnyopTensor x, out;
  AnyopValue values[2] = {};
};

}  // namespace which
