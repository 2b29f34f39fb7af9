// SPDX-License-Identifier: Apache-2.0
// Attention on CUDA: which kernel and which tiles, by dtype and features.
#include "anyop/ops/attention.h"
#include "anyop/ops/attention_varlen.h"
#include "anyop/ops/attention_varlen_with_lse.h"
#include "anyop/ops/attention_with_lse.h"
#include "attention_mma.h"
#include "attention_plain.h"

namespace anyop::cuda {
namespace {

// kKernel reads a view.
template <auto kKernel>
int32_t RunView(const AttentionView& view, int threads, size_t bytes, size_t most_bytes,
                AnyopCall* call) {
  if (const int32_t status = AllowShared<kKernel>(call, static_cast<int>(most_bytes)))
    return status;
  const Launch launch = {GridOf(view), dim3(threads), bytes};
  return launch.Run(call, kKernel, view);
}

// make(rows) is the view in tiles of so many queries.
template <typename T, int kFeatures, bool kPacked, typename Make>
int32_t RunByMma(const Make& make, AnyopCall* call) {
  using Tile = MmaTile<kFeatures>;
  constexpr auto kKernel = kPacked ? AttendPackedByMma<T, kFeatures> : AttendByMma<T, kFeatures>;
  return RunView<kKernel>(make(Tile::kRows), Tile::kThreads, Tile::kSharedBytes, Tile::kSharedBytes,
                          call);
}

template <typename T, bool kPacked, typename Make>
int32_t RunPlainly(const Make& make, AnyopCall* call) {
  constexpr auto kKernel = kPacked ? AttendPackedPlainly<T> : AttendPlainly<T>;
  const AttentionView view = make(kPlainRows);
  return RunView<kKernel>(view, kPlainThreads, PlainSharedBytes<T>(view.D),
                          PlainSharedBytes<T>(kPlainFeatures), call);
}

template <bool kPacked, typename Args, typename Make>
int32_t Attend(const Args& args, const Make& make, AnyopCall* call) {
  return WithFloating(AnyopDtypeOf(args.q), [&](auto zero) {
    using T = decltype(zero);
    if constexpr (sizeof(T) > 2) {
      return RunPlainly<T, kPacked>(make, call);
    } else {
      const int64_t widest = std::max(args.D, args.E);
      if (widest <= 64) return RunByMma<T, 64, kPacked>(make, call);
      if (widest <= 128) return RunByMma<T, 128, kPacked>(make, call);
      return RunByMma<T, 256, kPacked>(make, call);
    }
  });
}

template <typename Args>
int32_t AttendDense(const Args& args, const AnyopTensor* lse, AnyopCall* call) {
  if (const int32_t status = CheckSoftcap(call, args.softcap)) return status;
  if (args.B == 0 || args.H == 0 || args.S == 0 || (args.E == 0 && !lse)) return kAnyopOk;
  const AttentionProblem problem = ProblemOf(args, lse);
  return Attend<false>(args, [&](int rows) { return ViewOf(problem, rows); }, call);
}

template <typename Args>
int32_t AttendPacked(const Args& args, const AnyopTensor* lse, AnyopCall* call) {
  if (const int32_t status = CheckSoftcap(call, args.softcap)) return status;
  if (args.H == 0 || args.S == 0 || (args.E == 0 && !lse)) return kAnyopOk;
  return Attend<true>(args, [&](int rows) { return PackedView(args, lse, rows); }, call);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_attention_cuda(const AttentionArgs* args, AnyopCall* call) {
  return anyop::cuda::AttendDense(*args, nullptr, call);
}
extern "C" int32_t anyop_attention_with_lse_cuda(const AttentionWithLseArgs* args,
                                                 AnyopCall* call) {
  return anyop::cuda::AttendDense(*args, args->lse, call);
}
extern "C" int32_t anyop_attention_varlen_cuda(const AttentionVarlenArgs* args, AnyopCall* call) {
  return anyop::cuda::AttendPacked(*args, nullptr, call);
}
extern "C" int32_t anyop_attention_varlen_with_lse_cuda(const AttentionVarlenWithLseArgs* args,
                                                        AnyopCall* call) {
  return anyop::cuda::AttendPacked(*args, args->lse, call);
}
