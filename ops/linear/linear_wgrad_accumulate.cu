// SPDX-License-Identifier: Apache-2.0
// linear_wgrad_accumulate on CUDA: float32 is added to by cuBLASLt's product itself. It rounds a
// product to 16 bits before it adds (seen on an H200), so that those are added to by a kernel.
#include "anyop/cuda.h"
#include "anyop/ops/linear_wgrad_accumulate.h"
#include "gradient_products.h"

namespace anyop::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void Add(const float* sums, T* to, int64_t count) {
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < count; i += step)
    to[i] = Narrow<T>(Widen(to[i]) + sums[i]);
}

template <typename T>
int32_t AddTo(AnyopCall* call, const float* sums, const AnyopTensor* to, int64_t count) {
  const int64_t blocks = CeilDiv(count, kThreads);
  const Launch launch{dim3(static_cast<unsigned>(blocks < 8192 ? blocks : 8192)), dim3(kThreads)};
  return launch.Run(call, Add<T>, sums, static_cast<T*>(to->data), count);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_linear_wgrad_accumulate_cuda(const LinearWgradAccumulateArgs* args,
                                                      AnyopCall* call) {
  using namespace anyop::cuda;
  const int64_t count = args->N * args->K;
  if (args->rows == 0 || count == 0) return kAnyopOk;
  anyop::cublaslt::Product product =
      GradientOfWeight(AnyopDtypeOf(args->x), args->rows, args->N, args->K, args->grad_out->data,
                       args->x->data, args->grad_weight->data);
  product.out_dtype = kAnyopFloat32;
  const AnyopDtype dtype = AnyopDtypeOf(args->grad_weight);
  if (dtype == kAnyopFloat32) {
    product.added = product.out;
    product.added_row_stride = args->K;
    return Multiply(call, product);
  }
  product.out = call->workspace(call, count * int64_t{sizeof(float)});
  if (!product.out) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  if (const int32_t status = Multiply(call, product)) return status;
  const auto* sums = static_cast<const float*>(product.out);
  return dtype == kAnyopFloat16 ? AddTo<__half>(call, sums, args->grad_weight, count)
                                : AddTo<__nv_bfloat16>(call, sums, args->grad_weight, count);
}
