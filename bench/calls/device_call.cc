// SPDX-License-Identifier: Apache-2.0
// The loop of bench/calls/device_call.py, built against the torch that is there:
// torch.ops.anyop_bench.
#include <ATen/ATen.h>
#include <torch/library.h>

#include <chrono>
#include <string>

namespace {

using at::Tensor;

// Nanoseconds of a call, of which a tenth more come first.
double Bench(const std::string& what, const Tensor& a, const Tensor& b, int64_t n) {
  const at::NoGradGuard no_grad;
  const std::vector<Tensor> both{a, b};
  const auto repeat = [&](auto&& call) {
    for (int64_t i = 0; i < n / 10 + 1; ++i) call();
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < n; ++i) call();
    const auto end = std::chrono::steady_clock::now();
    return std::chrono::duration<double, std::nano>(end - begin).count() / static_cast<double>(n);
  };
  Tensor written = a;
  if (what == "add") return repeat([&] { at::add(a, b); });
  if (what == "mul_") return repeat([&] { written.mul_(1.0); });
  if (what == "mm") return repeat([&] { at::mm(a, b); });
  if (what == "relu") return repeat([&] { at::relu(a); });
  if (what == "relu_") return repeat([&] { at::relu_(written); });
  if (what == "cat") return repeat([&] { at::cat(both); });
  if (what == "sum") return repeat([&] { a.sum(); });
  if (what == "softmax") return repeat([&] { at::_softmax(a, -1, false); });
  if (what == "view") return repeat([&] { a.view({-1}); });
  if (what == "empty") return repeat([&] { at::empty({8, 8}, a.options()); });
  if (what == "std") return repeat([&] { a.std(); });
  TORCH_CHECK_VALUE(false, "no case '", what, "' to measure");
}

}  // namespace

TORCH_LIBRARY(anyop_bench, m) {
  m.def("bench(str what, Tensor a, Tensor b, int n) -> float", Bench);
}
