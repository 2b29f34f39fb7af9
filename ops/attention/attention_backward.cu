// SPDX-License-Identifier: Apache-2.0
// Gradients of attention on CUDA: which kernels and which tiles, by dtype and features.
#include "anyop/ops/attention_backward.h"
#include "anyop/ops/attention_varlen_backward.h"
#include "attention_backward_mma.h"
#include "attention_backward_plain.h"

namespace anyop::cuda {
namespace {

template <typename T>
T* DataOf(const AnyopTensor* x) {
  return x ? static_cast<T*>(x->data) : nullptr;
}

// The forward's view, of results that are read.
template <typename Args>
AttentionView ViewOfForward(const Args& args, int rows, std::false_type /* packed */) {
  AttentionProblem problem = {
      args.q,   args.k,   args.v, args.mask,      args.sinks,    args.alibi_slopes,
      args.out, args.lse, args.B, args.H,         args.G,        args.S,
      args.T,   args.D,   args.E, WindowOf(args), ScaleOf(args), args.softcap};
  return ViewOf(problem, rows);
}
template <typename Args>
AttentionView ViewOfForward(const Args& args, int rows, std::true_type) {
  return PackedView(args, args.lse, rows);
}

// Steps of (batch, heads, tokens, features), or of packed (tokens, heads, features).
template <bool kPacked>
Steps StepsOfRows(const AnyopTensor* x) {
  if (!x) return {};
  if (kPacked) return {0, x->strides[1], x->strides[0]};
  return StepsOf(*x);
}

template <bool kPacked, typename Args>
GradientView MakeView(const Args& args, int rows) {
  GradientView p = {};
  p.a = ViewOfForward(args, rows, std::bool_constant<kPacked>());
  p.grad_out = args.grad_out->data, p.grad_lse = DataOf<const float>(args.grad_lse);
  p.grad_q = DataOf<void>(args.grad_q), p.grad_k = DataOf<void>(args.grad_k);
  p.grad_v = DataOf<void>(args.grad_v), p.grad_sinks = DataOf<float>(args.grad_sinks);
  p.grad_out_steps = StepsOfRows<kPacked>(args.grad_out);
  p.grad_lse_steps = StepsOfRows<kPacked>(args.grad_lse);
  p.grad_q_steps = StepsOfRows<kPacked>(args.grad_q);
  p.grad_k_steps = StepsOfRows<kPacked>(args.grad_k);
  p.grad_v_steps = StepsOfRows<kPacked>(args.grad_v);
  p.B = kPacked ? 1 : static_cast<int>(args.B), p.G = static_cast<int>(args.G);
  p.key_tiles = static_cast<int>(kPacked ? args.T / rows + args.B + 2 : CeilDiv(args.T, rows));
  p.key_items = (kPacked ? int64_t{1} : args.B) * args.G * p.key_tiles;
  return p;
}

// Whether rows of grad_out lie as 16 bytes and their multiples.
inline bool HasAlignedGradient(const AnyopTensor& x) {
  const int64_t per = 128 / x.dtype_bits;
  bool aligned = IsAligned(static_cast<const char*>(x.data), 16) && x.shape[x.ndim - 1] % per == 0;
  for (int d = 0; d < x.ndim - 1; ++d) aligned &= x.strides[d] % per == 0 || x.shape[d] <= 1;
  return aligned;
}

inline Launch LaunchOf(int64_t items, int threads, size_t bytes, unsigned parts = 1) {
  return {dim3(static_cast<unsigned>(std::min(items, kMostColumns)),
               static_cast<unsigned>(CeilDiv(items, kMostColumns)), parts),
          dim3(threads), bytes};
}

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
  GradientView p = MakeView<kPacked>(args, Tile::kOwn);
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
      GradientView p = MakeView<kPacked>(args, kPlainGradientRows);
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
