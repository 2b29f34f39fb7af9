// SPDX-License-Identifier: Apache-2.0
// build_swap_map on CUDA: 16 threads take a pair of stripes, each a swap, and walk down its rows,
// which all of them read at once.
#include "anyop/cuda.h"
#include "anyop/cuda/launch.h"
#include "anyop/ops/build_swap_map.h"
#include "two_of_four.h"

namespace anyop::cuda {
namespace {

constexpr int kSwapThreads = 128, kPairsOfBlock = kSwapThreads / 16;

// What is kept of four, of which number `at` is another.
__device__ double KeptWith(const float (&x)[4], int at, float other) {
  return Kept(at == 0 ? other : x[0], at == 1 ? other : x[1], at == 2 ? other : x[2],
              at == 3 ? other : x[3]);
}

__global__ void __launch_bounds__(kSwapThreads)
    AddSwaps(const Matrix matrix, Indices pairs, int64_t N, float* out) {
  const int swap = threadIdx.x % 16, i = swap / 4, j = swap % 4;
  for (int64_t n = int64_t{blockIdx.x} * kPairsOfBlock + threadIdx.x / 16; n < N;
       n += int64_t{gridDim.x} * kPairsOfBlock) {
    const int64_t left = pairs[2 * n], right = pairs[2 * n + 1], stripes = matrix.C / 4;
    const bool inside = left >= 0 && left < stripes && right >= 0 && right < stripes;
    double sum = inside ? 0 : static_cast<double>(NAN);
    for (int64_t r = 0; inside && r < matrix.R; ++r) {
      const float *from = matrix.At(r, left * 4), *with = matrix.At(r, right * 4);
      const float x[4] = {from[0], from[1], from[2], from[3]};
      const float y[4] = {with[0], with[1], with[2], with[3]};
      const double base = Kept(x[0], x[1], x[2], x[3]) + Kept(y[0], y[1], y[2], y[3]);
      sum += KeptWith(x, i, with[j]) + KeptWith(y, j, from[i]) - base;
    }
    out[16 * n + swap] = static_cast<float>(sum);
  }
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_build_swap_map_cuda(const BuildSwapMapArgs* args, AnyopCall* call) {
  using namespace anyop;
  if (args->N == 0) return kAnyopOk;
  const int64_t blocks = cuda::CeilDiv(args->N, cuda::kPairsOfBlock);
  const cuda::Launch launch{dim3(static_cast<unsigned>(blocks < 0x7fffffff ? blocks : 0x7fffffff)),
                            dim3(cuda::kSwapThreads)};
  return launch.Run(call, cuda::AddSwaps, static_cast<const Matrix>(Matrix(args->matrix)),
                    Indices(args->stripe_pairs), args->N, static_cast<float*>(args->out->data));
}
