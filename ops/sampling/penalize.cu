// SPDX-License-Identifier: Apache-2.0
// penalize on CUDA: a thread takes elements side by side with its neighbours; blocks share a row.
// 4 + 1 bytes are read for an element, and itself; what nothing changes is not written.
#include "anyop/cuda.h"
#include "anyop/ops/penalize.h"
#include "penalty.h"

namespace anyop::cuda {
namespace {

constexpr int kThreads = 256, kEach = 8;

struct Penalized {
  void* logits;
  const uint8_t* in_prompt;
  const int32_t* counts;
  int64_t B, V, logits_step, prompt_step, counts_step;
  sampling::Penalties penalties;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) Penalize(const __grid_constant__ Penalized p) {
  for (int64_t b = blockIdx.y; b < p.B; b += gridDim.y) {
    const sampling::Penalty penalty = p.penalties[b];
    T* const logits = static_cast<T*>(p.logits) + b * p.logits_step;
    const int64_t first = int64_t{blockIdx.x} * kThreads * kEach + threadIdx.x;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t v = first + i * kThreads;
      if (v >= p.V) break;
      const bool in_prompt = p.in_prompt[b * p.prompt_step + v] != 0;
      const int32_t count = p.counts[b * p.counts_step + v];
      if (in_prompt || count > 0)
        logits[v] = Narrow<T>(penalty(Widen(logits[v]), in_prompt, count));
    }
  }
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_penalize_cuda(const PenalizeArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  if (args->B == 0 || args->V == 0) return kAnyopOk;
  const Penalized p = {args->logits->data,
                       static_cast<const uint8_t*>(args->prompt_mask->data),
                       static_cast<const int32_t*>(args->output_counts->data),
                       args->B,
                       args->V,
                       args->logits->strides[0],
                       args->prompt_mask->strides[0],
                       args->output_counts->strides[0],
                       anyop::sampling::PenaltiesOf(*args)};
  const Launch launch{dim3(static_cast<unsigned>(CeilDiv(args->V, kThreads * kEach)),
                           static_cast<unsigned>(args->B < 65535 ? args->B : 65535)),
                      dim3(kThreads)};
  return WithFloat32Sums(AnyopDtypeOf(args->logits),
                         [&](auto zero) { return launch.Run(call, Penalize<decltype(zero)>, p); });
}
