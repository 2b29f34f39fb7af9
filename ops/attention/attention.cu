// SPDX-License-Identifier: Apache-2.0
// Attention on CUDA: which kernel and which tiles, by dtype and features.
#include "anyop/ops/attention.h"
#include "anyop/ops/attention_with_lse.h"
#include "attention_mma.h"
#include "attention_plain.h"

namespace anyop::cuda {
namespace {

template <typename T, int kFeatures>
int32_t RunByMma(const AttentionProblem& problem, AnyopCall* call) {
  using Tile = MmaTile<kFeatures>;
  if (const int32_t status = AllowShared<AttendByMma<T, kFeatures>>(call, Tile::kSharedBytes))
    return status;
  const AttentionView view = ViewOf(problem, Tile::kRows);
  const Launch launch = {GridOf(view), dim3(Tile::kThreads), Tile::kSharedBytes};
  return launch.Run(call, AttendByMma<T, kFeatures>, view);
}

template <typename T>
int32_t RunPlainly(const AttentionProblem& problem, AnyopCall* call) {
  const AttentionView view = ViewOf(problem, kPlainRows);
  const size_t bytes = PlainSharedBytes<T>(view.D);
  if (const int32_t status = AllowShared<AttendPlainly<T>>(
          call, static_cast<int>(PlainSharedBytes<T>(kPlainFeatures))))
    return status;
  const Launch launch = {GridOf(view), dim3(kPlainThreads), bytes};
  return launch.Run(call, AttendPlainly<T>, view);
}

int32_t Attend(const AttentionProblem& p, AnyopCall* call) {
  if (const int32_t status = CheckSoftcap(call, p.softcap)) return status;
  if (p.B == 0 || p.H == 0 || p.S == 0 || (p.E == 0 && !p.lse)) return kAnyopOk;
  return WithFloating(AnyopDtypeOf(p.q), [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) > 2) {
      return RunPlainly<T>(p, call);
    } else {
      const int64_t widest = std::max(p.D, p.E);
      if (widest <= 64) return RunByMma<T, 64>(p, call);
      if (widest <= 128) return RunByMma<T, 128>(p, call);
      return RunByMma<T, 256>(p, call);
    }
  });
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_attention_cuda(const AttentionArgs* args, AnyopCall* call) {
  return anyop::cuda::Attend(anyop::ProblemOf(*args, nullptr), call);
}
extern "C" int32_t anyop_attention_with_lse_cuda(const AttentionWithLseArgs* args,
                                                 AnyopCall* call) {
  return anyop::cuda::Attend(anyop::ProblemOf(*args, args->lse), call);
}
