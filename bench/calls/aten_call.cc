// SPDX-License-Identifier: Apache-2.0
// Calls of ATen from C++ by the typed functions of anyop/aten.h, for bench/calls/aten_call.py, in
// the process of the Python that calls the same operators.
#include <anyop/aten.h>

#include <chrono>
#include <cstdio>
#include <functional>

namespace aten = anyop::aten;
using aten::Tensor;

namespace {

// 4x4, filled by the program.
struct Inputs {
  float x[16], y[16], sum[16];
  int64_t rows[4];
  bool chosen[16];
};

struct Sides {
  Tensor x, y, sum, rows, chosen;

  std::function<Tensor()> calls[12] = {
      [this] { return aten::add(x, y); },
      [this] { return aten::mul(x, 2.5); },
      [this] { return aten::relu(x); },
      [this] { return aten::sum(x, 1); },
      [this] { return aten::cat({x, y}, 1); },
      [this] { return aten::topk(x, 2).values; },
      [this] { return aten::matmul(x, y); },
      [this] { return aten::where(chosen, x, y); },
      [this] { return aten::reshape(x, {2, 8}); },
      [this] { return aten::add_(sum, y); },
      [this] { return aten::zeros({4, 4}); },
      [this] { return aten::embedding(x, rows); },
  };
};

Sides* sides[2];  // of memory that is lent at each call; of torch's own tensors

}  // namespace

extern "C" const char* aten_open(Inputs* in) {
  try {
    Sides& lent = *(sides[0] = new Sides);
    lent.x = Tensor::View(in->x, {4, 4});
    lent.y = Tensor::View(in->y, {4, 4});
    lent.sum = Tensor::View(in->sum, {4, 4});
    lent.rows = Tensor::View(in->rows, {4});
    lent.chosen = Tensor::View(in->chosen, {4, 4});
    Sides& own = *(sides[1] = new Sides);
    own.x = aten::clone(lent.x);
    own.y = aten::clone(lent.y);
    own.sum = aten::clone(lent.sum);
    own.rows = aten::clone(lent.rows);
    own.chosen = aten::clone(lent.chosen);
    return nullptr;
  } catch (const anyop::Error& error) {
    return AnyopLastError();
  }
}

// Nanoseconds of one call.
extern "C" double aten_time(int side, int call, int count) {
  const std::function<Tensor()>& body = sides[side]->calls[call];
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < count; ++i) body();
  const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - begin;
  return spent.count() / count;
}

// The elements of the result, row-major; how many.
extern "C" int64_t aten_result(int side, int call, float* out) {
  const Tensor result = aten::contiguous(sides[side]->calls[call]());
  const int64_t count = result.numel();
  for (int64_t i = 0; i < count; ++i) out[i] = result.data<float>()[i];
  return count;
}
