// SPDX-License-Identifier: Apache-2.0
// add on CUDA: floats in float32 (float64), integers modulo 2^n. 3 s bytes are moved an element of
// size s. Who does what: anyop/cuda/map.h.
#include "anyop/cuda/map.h"
#include "anyop/ops/add.h"

namespace anyop::cuda {
namespace {

struct Sum {
  double real;
  uint64_t integer;

  __device__ float operator()(float x, float y) const {
    return MulAdd(static_cast<float>(real), y, x);
  }
  __device__ double operator()(double x, double y) const { return MulAdd(real, y, x); }
  template <typename Unsigned>
  __device__ Unsigned operator()(Unsigned x, Unsigned y) const {
    return static_cast<Unsigned>(uint64_t{x} + integer * y);
  }
  __device__ Truth operator()(Truth x, Truth y) const {
    return {static_cast<uint8_t>(IsTrue(x) || (integer != 0 && IsTrue(y)))};
  }
};

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_add_cuda(const AddArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  const double alpha = args->alpha;
  const AnyopDtype dtype = AnyopDtypeOf(args->out);
  Sum sum = {alpha, 0};
  if (!IsFloating(dtype)) {
    const bool in_range = alpha >= -0x1p63 && alpha < 0x1p63;
    if (!in_range || alpha != static_cast<double>(static_cast<int64_t>(alpha))) {
      return call->fail(call, kAnyopValueError,
                        "alpha has a fraction or is too large, expected an integer for integers");
    }
    sum.integer = static_cast<uint64_t>(static_cast<int64_t>(alpha));
    if (dtype == kAnyopBool) sum.integer = sum.integer != 0;
  }
  return RunMap(call, sum, {args->x, args->y}, args->out);
}
