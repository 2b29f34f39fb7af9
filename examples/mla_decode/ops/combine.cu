// SPDX-License-Identifier: Apache-2.0
// combine on CUDA: a block joins the parts of one head.
//
// Who does what: every thread reads all lse of the head, which are few and in the first cache, and
// computes the same weights; then it adds up columns, threads apart. Weights and sums are float32.
// 4 K + s bytes are moved an element of the result of size s.
#include "anyop/cuda_rows.h"
#include "mla/ops/combine.h"

namespace anyop::cuda {
namespace {

template <typename T>
struct Parts {
  const float *partial, *lse;
  T* out;
  float* total;
  int64_t rows, K, H, R;
};

template <typename T>
__global__ void __launch_bounds__(256) JoinParts(const __grid_constant__ Parts<T> p) {
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const int64_t first = row / p.H * p.K * p.H + row % p.H;  // part k is k H rows further
    const float* lse = p.lse + first;
    float most = -INFINITY, weights = 0;
    for (int64_t k = 0; k < p.K; ++k) most = fmaxf(most, lse[k * p.H]);
    const float base = most == -INFINITY ? 0 : most;
    for (int64_t k = 0; k < p.K; ++k) weights += expf(lse[k * p.H] - base);
    if (threadIdx.x == 0) p.total[row] = weights == 0 ? -INFINITY : base + logf(weights);
    for (int64_t r = threadIdx.x; r < p.R; r += blockDim.x) {
      float sum = 0;
      for (int64_t k = 0; k < p.K; ++k) {
        const float weight = expf(lse[k * p.H] - base);
        if (weight != 0) sum = MulAdd(weight, p.partial[(first + k * p.H) * p.R + r], sum);
      }
      p.out[row * p.R + r] = Narrow<T>(weights == 0 ? 0 : sum / weights);
    }
  }
}

template <typename T>
int32_t Run(const CombineArgs& args, AnyopCall* call) {
  const Parts<T> p = {static_cast<const float*>(args.partial->data),
                      static_cast<const float*>(args.lse->data),
                      static_cast<T*>(args.out->data),
                      static_cast<float*>(args.total->data),
                      args.B * args.H,
                      args.K,
                      args.H,
                      args.R};
  constexpr int64_t kMaxGrid = 0x7fffffff;
  const int64_t threads = args.R >= 256 ? 256 : CeilDiv(args.R, 32) * 32;
  const Launch launch{dim3(static_cast<unsigned>(p.rows < kMaxGrid ? p.rows : kMaxGrid)),
                      dim3(static_cast<unsigned>(threads ? threads : 32))};
  return launch.Run(call, JoinParts<T>, p);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t mla_combine_cuda(const CombineArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  if (args->B == 0 || args->H == 0) return kAnyopOk;
  switch (AnyopDtypeOf(args->out)) {
    case kAnyopFloat16:
      return Run<__half>(*args, call);
    case kAnyopBFloat16:
      return Run<__nv_bfloat16>(*args, call);
    default:
      return Run<float>(*args, call);
  }
}
