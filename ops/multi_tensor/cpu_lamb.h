// SPDX-License-Identifier: Apache-2.0
// The two stages of LAMB on the CPU; the first with the norms that the second needs.
#ifndef ANYOP_OPS_MULTI_TENSOR_CPU_LAMB_H_
#define ANYOP_OPS_MULTI_TENSOR_CPU_LAMB_H_

#include "cpu_step.h"
#include "lamb_step.h"

namespace anyop {

// Stage one that adds the squares of parameters and updates to sums.
template <typename W>
struct LambSummingStep {
  LambUpdate<W> update_of;
  double* sums;
};
template <typename W>
inline void StepElements(const LambSummingStep<W> s, int64_t n, W* p, const W* g, W* m, W* v,
                         W* update) {
  W of_p = 0, of_update = 0;
#pragma omp simd reduction(+ : of_p, of_update)
  for (int64_t i = 0; i < n; ++i) {
    update[i] = s.update_of(p[i], g[i], m[i], v[i]);
    of_p += p[i] * p[i];
    of_update += update[i] * update[i];
  }
  s.sums[0] += static_cast<double>(of_p);
  s.sums[1] += static_cast<double>(of_update);
}

namespace cpu {

struct LambSumming : LambStage1<Single> {
  double* sums;

  template <typename W>
  LambSummingStep<W> At(W zero, int64_t n) const {
    return {LambStage1<Single>::At(zero, n).update_of, sums};
  }
};

ANYOP_CPU_CLONES void StepStage1(const LambStage1<Single>& stage, const StepLists<3>& lists,
                                 bool is_wide, const Span& span) {
  StepSpan(stage, lists, is_wide, span);
}
ANYOP_CPU_CLONES void StepStage2(const LambStage2<Single>& stage, const StepLists<0>& lists,
                                 bool is_wide, const Span& span) {
  StepSpan(stage, lists, is_wide, span);
}

ANYOP_CPU_CLONES void StepAndSum(const LambSumming& stage, const StepLists<3>& lists, bool is_wide,
                                 const Span& span) {
  StepSpan(stage, lists, is_wide, span);
}

// The squares of each chunk are added apart, the sums in order, so that the bits do not depend on
// the threads. norms, update_norms: of each tensor.
inline int32_t RunStage1AndNorms(AnyopCall* call, const LambStage1<Single>& stage,
                                 const StepLists<3>& lists, float* norms, float* update_norms) {
  const ListChunks chunks(call, lists.p);
  if (int32_t status = chunks.status()) return status;
  auto* parts = static_cast<double*>(
      call->workspace(call, (2 * chunks.count() + 1) * int64_t{sizeof(double)}));
  if (!parts) return kAnyopOutOfMemory;
  const bool is_wide = lists.AnyFloat64();
  chunks.ForEach(call, [&](int64_t chunk, int64_t k, int64_t begin, int64_t n) {
    double* sums = parts + 2 * chunk;
    sums[0] = sums[1] = 0;
    StepAndSum({stage, sums}, lists, is_wide, {k, begin, n});
  });
  for (int64_t k = 0; k < lists.p.count; ++k) {
    double of_p = 0, of_update = 0;
    for (int64_t i = chunks.First(k); i < chunks.First(k + 1); ++i)
      of_p += parts[2 * i], of_update += parts[2 * i + 1];
    norms[k] = static_cast<float>(sqrt(of_p));
    update_norms[k] = static_cast<float>(sqrt(of_update));
  }
  return kAnyopOk;
}

inline int32_t RunStage1(AnyopCall* call, const LambStage1<Single>& stage,
                         const StepLists<3>& lists) {
  return RunSteps(call, stage, lists, StepStage1);
}
inline int32_t RunStage2(AnyopCall* call, const LambStage2<Single>& stage,
                         const StepLists<0>& lists) {
  return RunSteps(call, stage, lists, StepStage2);
}

}  // namespace cpu
}  // namespace anyop

#endif  // ANYOP_OPS_MULTI_TENSOR_CPU_LAMB_H_
