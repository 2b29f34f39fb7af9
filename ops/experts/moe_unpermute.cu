// SPDX-License-Identifier: Apache-2.0
// moe_unpermute and its gradient on CUDA: see token_rows_cuda.h. Of the gradient a warp takes a
// slot: it reads its token's row of grad_out and, for the gradient of the weight, its row of y.
#include "anyop/ops/moe_unpermute.h"
#include "anyop/ops/moe_unpermute_backward.h"
#include "token_rows_cuda.h"

namespace anyop::cuda {
namespace {

struct SlotGradients {
  const void *grad_out, *y;
  const int32_t* inverse;
  const float* weights;
  void* grad_y;
  float* grad_weights;
  int64_t slots, K, H, rows;
};

template <typename T>
__global__ void __launch_bounds__(256) Differentiate(const __grid_constant__ SlotGradients p) {
  const int lane = threadIdx.x % 32;
  const int64_t step = int64_t{gridDim.x} * 8;
  for (int64_t slot = int64_t{blockIdx.x} * 8 + threadIdx.x / 32; slot < p.slots; slot += step) {
    const T* grad = static_cast<const T*>(p.grad_out) + slot / p.K * p.H;
    const int64_t at = p.inverse[slot];
    const bool inside = at >= 0 && at < p.rows;
    const Wide<T> weight = p.weights ? p.weights[slot] : 1;
    Wide<T> sum = 0;
    for (int64_t h = lane; inside && h < p.H; h += 32) {
      const Wide<T> g = Widen(grad[h]);
      if (p.grad_y) static_cast<T*>(p.grad_y)[at * p.H + h] = Narrow<T>(weight * g);
      if (p.grad_weights) sum = MulAdd(g, Widen(static_cast<const T*>(p.y)[at * p.H + h]), sum);
    }
    if (!p.grad_weights) continue;
#pragma unroll
    for (int half = 16; half; half /= 2) sum += __shfl_xor_sync(~0u, sum, half);
    if (lane == 0) p.grad_weights[slot] = static_cast<float>(sum);
  }
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_moe_unpermute_cuda(const MoeUnpermuteArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return WithFloating(AnyopDtypeOf(args->y), [&](auto zero) {
    using T = decltype(zero);
    return SumTokens<T, T>(
        call, {args->y->data, static_cast<const int32_t*>(args->inverse->data),
               args->weights ? static_cast<const float*>(args->weights->data) : nullptr,
               args->out->data, args->N, args->T, args->K, args->H});
  });
}

extern "C" int32_t anyop_moe_unpermute_backward_cuda(const MoeUnpermuteBackwardArgs* args,
                                                     AnyopCall* call) {
  using namespace anyop::cuda;
  const size_t bytes = static_cast<size_t>(args->N * args->H * (args->y->dtype_bits / 8));
  if (args->grad_y && bytes) {
    if (int32_t status = Check(call, cudaMemsetAsync(args->grad_y->data, 0, bytes, StreamOf(call)),
                               "filling grad_y"))
      return status;
  }
  if (args->T * args->K == 0) return kAnyopOk;
  const SlotGradients p = {
      args->grad_out->data,
      args->y->data,
      static_cast<const int32_t*>(args->inverse->data),
      args->weights ? static_cast<const float*>(args->weights->data) : nullptr,
      args->grad_y ? args->grad_y->data : nullptr,
      args->grad_weights ? static_cast<float*>(args->grad_weights->data) : nullptr,
      args->T * args->K,
      args->K,
      args->H,
      args->N};
  return WithFloating(AnyopDtypeOf(args->y), [&](auto zero) {
    const Launch launch{dim3(GridFor(p.slots, 8)), dim3(256)};
    return launch.Run(call, Differentiate<decltype(zero)>, p);
  });
}
