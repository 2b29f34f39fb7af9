// SPDX-License-Identifier: Apache-2.0
// token_bitmask on CUDA: a thread has an element, a warp a word of bits. Logits are only written.
#include "anyop/cuda.h"
#include "anyop/ops/token_bitmask.h"
#include "draw.h"

namespace anyop::cuda {
namespace {

constexpr int kThreads = 256, kEach = 8;

struct Forbidden {
  void* logits;
  const uint32_t* words;
  sampling::PerRow<int64_t> rows;
  int64_t N, B, V, logits_step, words_step;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) Forbid(const __grid_constant__ Forbidden p) {
  for (int64_t b = blockIdx.y; b < p.B; b += gridDim.y) {
    const int64_t row = p.rows.data ? p.rows[b] : b;
    if (row < 0 || row >= p.N) continue;
    T* const logits = static_cast<T*>(p.logits) + row * p.logits_step;
    const int64_t first = int64_t{blockIdx.x} * kThreads * kEach + threadIdx.x;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t v = first + i * kThreads;
      if (v >= p.V) break;
      if (!(p.words[b * p.words_step + v / 32] >> (v % 32) & 1))
        logits[v] = Narrow<T>(static_cast<float>(-INFINITY));
    }
  }
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_token_bitmask_cuda(const TokenBitmaskArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  if (args->B == 0 || args->V == 0) return kAnyopOk;
  const Forbidden p = {args->logits->data,
                       static_cast<const uint32_t*>(args->bitmask->data),
                       anyop::sampling::PerRowOf<int64_t>(args->rows),
                       args->N,
                       args->B,
                       args->V,
                       args->logits->strides[0],
                       args->bitmask->strides[0]};
  const Launch launch{dim3(static_cast<unsigned>(CeilDiv(args->V, kThreads * kEach)),
                           static_cast<unsigned>(args->B < 65535 ? args->B : 65535)),
                      dim3(kThreads)};
  return WithFloat32Sums(AnyopDtypeOf(args->logits),
                         [&](auto zero) { return launch.Run(call, Forbid<decltype(zero)>, p); });
}
