// SPDX-License-Identifier: Apache-2.0
// Calls of one small operator by the C ABI, for bench/calls/router.py: `router calls N` makes N
// calls and nothing else, for a counter of instructions; without arguments it times calls and the
// routing alone.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "anyop/anyop.h"
#ifdef WITH_ROUTES
#include "router/choose/route.h"
#endif

namespace {

struct Args {
  AnyopArgs base;
  AnyopTensor* x;
  AnyopTensor* out;
  int64_t D;
};

int32_t Nothing(const void*, AnyopCall*) { return kAnyopOk; }

const int32_t code[] = {1, 0, -1, 0, 0};
AnyopParam params[2];
AnyopKernelEntry kernel;

AnyopOp Table(const char* name) {
  for (int i = 0; i < 2; ++i) {
    AnyopParam& p = params[i];
    p.name = i ? "out" : "x";
    p.shape_text = "D";
    p.offset = static_cast<uint32_t>(sizeof(AnyopArgs) + 8 * static_cast<size_t>(i));
    p.flags = i ? kAnyopOutput : 0;
    p.kind = kAnyopTensor;
    p.dtype_a = p.dtype_b = -1;
    p.dtype_set = uint64_t{1} << kAnyopFloat32;
    p.length = p.fixed_count = -1;
  }
  kernel.backend = "cpu";
  kernel.source = "router.cc";
  kernel.run = Nothing;
  kernel.device_type = 1;
  static const char* const symbols[] = {"D"};
  AnyopOp op = {};
  op.size = sizeof op;
  op.abi_version = ANYOP_ABI_VERSION;
  op.name_space = "bench";
  op.name = name;
  op.schema = "bench::nothing(Tensor x) -> Tensor";
  op.doc = op.metadata = "";
  op.params = params;
  op.code = code;
  op.symbols = symbols;
  op.kernels = &kernel;
  op.param_size = sizeof(AnyopParam);
  op.kernel_size = sizeof(AnyopKernelEntry);
  op.num_inputs = op.num_outputs = op.num_kernels = 1;
  op.args_size = sizeof(Args);
  op.sizes_offset = offsetof(Args, D);
  op.code_words = sizeof code / sizeof *code;
  op.num_symbols = op.num_sizes = 1;
  return op;
}

const AnyopOperator* Register() {
  static const AnyopOp table = Table("nothing");
  static const AnyopOp* const ops[] = {&table};
  static const AnyopLibrary library = {sizeof library, ANYOP_ABI_VERSION, "bench", ops, 1, 0};
  return AnyopRegisterLibrary(&library) ? nullptr : AnyopFindOperator("bench.nothing");
}

struct Call {
  const AnyopOperator* op = Register();
  float data[2][16] = {};
  int64_t shape[1] = {16}, strides[1] = {1};
  AnyopTensor tensors[2];
  AnyopValue values[2] = {};
  AnyopInvokeOptions options = {};

  Call() {
    for (int i = 0; i < 2; ++i) {
      tensors[i] = {data[i], 1, 0, 1, 2, 32, 1, shape, strides, 0};
      values[i].kind = kAnyopTensorValue;
      values[i].as.tensor = &tensors[i];
    }
    options.size = sizeof options;
  }
  void Run() {
    if (AnyopInvoke(op, values, 2, &options)) {
      std::fprintf(stderr, "%s\n", AnyopLastError());
      std::exit(1);
    }
  }
};

#ifdef WITH_ROUTES
constexpr int kCalls = 100000, kRounds = 15;

template <typename Body>
double Time(const Body& body) {
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < kCalls; ++i) body();
  const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - begin;
  return spent.count() / kCalls;
}

// Loads a route file of this text.
void Load(const char* text) {
  char path[] = "/tmp/anyop_bench_router_XXXXXX";
  std::FILE* file = fdopen(mkstemp(path), "w");
  std::fputs(text, file);
  std::fclose(file);
  if (AnyopLoadRoutes(path)) std::fprintf(stderr, "%s\n", AnyopLastError());
  std::remove(path);
}

void TimeAll() {
  Call call;
  const auto* op = reinterpret_cast<const anyop::Operator*>(call.op);
  volatile int device = 1;
  AnyopKernel volatile direct = Nothing;
  AnyopCall made = {};
  const std::pair<const char*, const char*> routes[] = {
      {"default", nullptr},
      {"a rule", "* = cpu\n"},
      {"a rule with one condition", "[when D<64]\n* = cpu\n"}};
  std::vector<double> times[6];
  for (int round = 0; round < kRounds; ++round) {
    times[0].push_back(Time([&] { direct(nullptr, &made); }));
    times[1].push_back(Time([&] {
      const anyop::Route::Ready ready = op->route.load(std::memory_order_acquire)->ready[device];
      made.context = ready.context;
      ready.run(nullptr, &made);
    }));
    for (size_t r = 0; r < 3; ++r) {
      routes[r].second ? Load(routes[r].second) : static_cast<void>(AnyopLoadRoutes(nullptr));
      times[2 + r].push_back(Time([&] { call.Run(); }));
    }
    AnyopLoadRoutes(nullptr);
    call.options.use = "cpu";
    times[5].push_back(Time([&] { call.Run(); }));
    call.options.use = nullptr;
  }
  const char* names[] = {
      "kernel called directly", "kernel called by its route",      "call, default",
      "call, a rule",           "call, a rule with one condition", "call, in a scope"};
  for (int i = 0; i < 6; ++i) {
    std::sort(times[i].begin(), times[i].end());
    std::printf("%s\t%.3f\t%.3f\n", names[i], times[i][0], times[i][kRounds / 2]);
  }
}
#endif

}  // namespace

int main(int count, char** arguments) {
  if (count == 3) {
    Call call;
    for (long i = std::atol(arguments[2]); i > 0; --i) call.Run();
    return 0;
  }
#ifdef WITH_ROUTES
  TimeAll();
#endif
  return 0;
}
