// SPDX-License-Identifier: Apache-2.0
// What the kernels of moe_route and its gradient share: folds of a warp, and the sigmoid.
#pragma once

#include "anyop/cuda.h"
#include "route_forms.h"

namespace anyop::cuda {
namespace {

__device__ inline float Least() { return __int_as_float(static_cast<int>(0xff800000u)); }

struct Most {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }
};
struct Sum {
  __device__ float operator()(float a, float b) const { return a + b; }
};
// The same number in all lanes, in a fixed order.
template <typename F>
__device__ float OfWarp(float v, F f) {
#pragma unroll
  for (int step = 16; step; step /= 2) v = f(v, __shfl_xor_sync(~0u, v, step));
  return v;
}

__device__ inline float SigmoidOf(float x) { return 1 / (1 + Exponential(-x)); }

}  // namespace
}  // namespace anyop::cuda
