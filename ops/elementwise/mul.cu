// SPDX-License-Identifier: Apache-2.0
// mul on CUDA: floats in float32 (float64), integers modulo 2^n.
#include "anyop/cuda/map.h"
#include "anyop/ops/mul.h"

namespace anyop::cuda {
namespace {

struct Product {
  __device__ float operator()(float x, float y) const { return x * y; }
  __device__ double operator()(double x, double y) const { return x * y; }
  template <typename Unsigned>
  __device__ Unsigned operator()(Unsigned x, Unsigned y) const {
    return static_cast<Unsigned>(uint64_t{x} * y);
  }
  __device__ Truth operator()(Truth x, Truth y) const {
    return {static_cast<uint8_t>(IsTrue(x) && IsTrue(y))};
  }
};

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_mul_cuda(const MulArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return RunMap(call, Product(), {args->x, args->y}, args->out);
}
