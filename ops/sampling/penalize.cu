// SPDX-License-Identifier: Apache-2.0
// penalize on CUDA: a thread takes runs of four elements side by side with its neighbours'; blocks
// share a row. 4 + 1 bytes are read for an element; itself only where something changes it.
#include "anyop/cuda.h"
#include "anyop/ops/penalize.h"
#include "penalty.h"

namespace anyop::cuda {
namespace {

constexpr int kThreads = 256, kRun = 4, kRuns = 4, kEach = kRun * kRuns;

struct Penalized {
  void* logits;
  const uint8_t* in_prompt;
  const int32_t* counts;
  int64_t B, V, logits_step, prompt_step, counts_step;
  sampling::Penalties penalties;
};

// Of four tokens: how often the text has them, and a byte each that says whether the prompt does.
struct Marks {
  Vector<int32_t, kRun> counts;
  uint32_t in_prompt;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) Penalize(const __grid_constant__ Penalized p) {
  for (int64_t b = blockIdx.y; b < p.B; b += gridDim.y) {
    const sampling::Penalty penalty = p.penalties[b];
    T* const logits = static_cast<T*>(p.logits) + b * p.logits_step;
    const uint8_t* const in_prompt = p.in_prompt + b * p.prompt_step;
    const int32_t* const counts = p.counts + b * p.counts_step;
    const bool aligned = reinterpret_cast<uintptr_t>(in_prompt) % 4 == 0 &&
                         reinterpret_cast<uintptr_t>(counts) % 16 == 0;
    const int64_t first = (int64_t{blockIdx.x} * kThreads * kRuns + threadIdx.x) * kRun;
    Marks marks[kRuns] = {};
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      const int64_t v = first + i * kThreads * kRun;
      if (aligned && v + kRun <= p.V) {
        marks[i] = {*reinterpret_cast<const Vector<int32_t, kRun>*>(counts + v),
                    *reinterpret_cast<const uint32_t*>(in_prompt + v)};
        continue;
      }
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        if (v + j >= p.V) break;
        marks[i].counts.at[j] = counts[v + j];
        marks[i].in_prompt |= uint32_t{in_prompt[v + j]} << 8 * j;
      }
    }
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      bool any = marks[i].in_prompt;
#pragma unroll
      for (int j = 0; j < kRun; ++j) any |= marks[i].counts.at[j] > 0;
      if (!any) continue;
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        const int32_t count = marks[i].counts.at[j];
        const bool is_in = marks[i].in_prompt >> 8 * j & 0xff;
        T& logit = logits[first + i * kThreads * kRun + j];
        if (is_in || count > 0) logit = Narrow<T>(penalty(Widen(logit), is_in, count));
      }
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
