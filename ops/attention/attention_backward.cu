// SPDX-License-Identifier: Apache-2.0
// Gradients of attention on CUDA: which kernels and which tiles, by dtype and features.
#include "anyop/ops/attention_backward.h"
#include "anyop/ops/attention_varlen_backward.h"
#include "attention_backward_mma.h"
#include "attention_backward_plain.h"
#include "attention_backward_view.h"

namespace anyop::cuda {
namespace {

// kQueries and kKeys read the view; parts: of the second.
template <auto kQueries, auto kKeys>
int32_t RunBoth(GradientView* p, int threads, int bytes, unsigned parts, AnyopCall* call) {
  const int64_t rows = int64_t{p->B} * p->a.H * p->a.S;
  if (p->a.items > 0 && rows > 0) {
    p->deltas =
        static_cast<float*>(call->workspace(call, rows * static_cast<int64_t>(sizeof(float))));
    if (!p->deltas) return call->fail(call, kAnyopOutOfMemory, "no memory for a number a query");
    if (const int32_t status = AllowShared<kQueries>(call, bytes)) return status;
    const Launch launch = LaunchOf(p->a.items, threads, static_cast<size_t>(bytes));
    if (const int32_t status = launch.Run(call, kQueries, *p)) return status;
  }
  const bool has_keys = p->grad_k || p->grad_v;
  if (!has_keys) p->key_items = 0;
  const int64_t items = p->key_items + (p->grad_sinks ? p->a.H : 0);
  if (items == 0) return kAnyopOk;
  if (const int32_t status = AllowShared<kKeys>(call, bytes)) return status;
  const Launch launch = LaunchOf(items, threads, static_cast<size_t>(bytes), parts);
  return launch.Run(call, kKeys, *p);
}

template <typename T, int kFeatures, bool kPacked, typename Args>
int32_t RunByMma(const Args& args, AnyopCall* call) {
  using Tile = GradientTile<kFeatures>;
  GradientView p = MakeView<kPacked>(args, Tile::kOwn, Tile::kOwn);
  p.grad_out_aligned = HasAlignedGradient(*args.grad_out);
  return RunBoth<GradeQueries<T, kFeatures, kPacked>, GradeKeys<T, kFeatures, kPacked>>(
      &p, Tile::kThreads, static_cast<int>(Tile::kSharedBytes), Tile::kHasBoth ? 1 : 2, call);
}

template <typename T, bool kPacked, typename Args>
int32_t RunFeatures(const Args& args, AnyopCall* call) {
  const int64_t widest = std::max(args.D, args.E);
  if (widest <= 64) return RunByMma<T, 64, kPacked>(args, call);
  if (widest <= 128) return RunByMma<T, 128, kPacked>(args, call);
  return RunByMma<T, 256, kPacked>(args, call);
}

template <bool kPacked, typename Args>
int32_t Grade(const Args& args, AnyopCall* call) {
  if (const int32_t status = CheckSoftcap(call, args.softcap)) return status;
  switch (AnyopDtypeOf(args.q)) {
    case kAnyopFloat16:
      return RunFeatures<__half, kPacked>(args, call);
    case kAnyopBFloat16:
      return RunFeatures<__nv_bfloat16, kPacked>(args, call);
    default: {
      GradientView p = MakeView<kPacked>(args, kPlainGradientRows, kPlainGradientRows);
      return RunBoth<GradeQueriesPlainly<kPacked>, GradeKeysPlainly<kPacked>>(
          &p, kPlainGradientThreads, 0, 1, call);
    }
  }
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_attention_backward_cuda(const AttentionBackwardArgs* args,
                                                 AnyopCall* call) {
  return anyop::cuda::Grade<false>(*args, call);
}
extern "C" int32_t anyop_attention_varlen_backward_cuda(const AttentionVarlenBackwardArgs* args,
                                                        AnyopCall* call) {
  return anyop::cuda::Grade<true>(*args, call);
}
