// SPDX-License-Identifier: Apache-2.0
// Attention to pages on CUDA: which kernel, and into how many parts keys are divided.
#include "anyop/ops/attention_paged.h"
#include "attention_paged_cuda.h"
#include "attention_paged_join.h"
#include "attention_paged_plain.h"

namespace anyop::cuda {
namespace {

// Of tensors (tokens, heads, features) or (tokens, heads), `each` tokens a sequence.
Steps StepsOfTokens(const AnyopTensor& x, int64_t each) {
  return {each * x.strides[0], x.strides[1], x.strides[0]};
}
Steps StepsOfPages(const AnyopTensor& x) { return {x.strides[0], x.strides[2], x.strides[1]}; }

template <typename T>
const T* DataOf(const AnyopTensor* x) {
  return x ? static_cast<const T*>(x->data) : nullptr;
}

PagedView ViewOfPages(const AttentionPagedArgs& args) {
  PagedView p = {};
  p.q = args.q->data, p.k = args.k_cache->data, p.v = args.v_cache->data, p.out = args.out->data;
  p.lse = args.lse ? static_cast<float*>(args.lse->data) : nullptr;
  p.sinks = DataOf<float>(args.sinks), p.slopes = DataOf<float>(args.alibi_slopes);
  p.k_scale = DataOf<float>(args.k_scale), p.v_scale = DataOf<float>(args.v_scale);
  p.k_scale_step = args.k_scale ? args.k_scale->strides[0] : 0;
  p.v_scale_step = args.v_scale ? args.v_scale->strides[0] : 0;
  p.table = DataOf<int32_t>(args.page_table), p.lengths = DataOf<int32_t>(args.seqlens_k);
  p.cu_q = DataOf<int32_t>(args.cu_seqlens_q);
  const int64_t of_each = args.cu_seqlens_q ? args.S : args.B > 0 ? args.S / args.B : 0;
  p.each = static_cast<int>(of_each);
  p.q_steps = StepsOfTokens(*args.q, of_each), p.out_steps = StepsOfTokens(*args.out, of_each);
  if (args.lse) p.lse_steps = StepsOfTokens(*args.lse, of_each);
  p.k_steps = StepsOfPages(*args.k_cache), p.v_steps = StepsOfPages(*args.v_cache);
  p.places = CountPlaces(args);
  p.B = static_cast<int>(args.B), p.S = static_cast<int>(args.S), p.H = static_cast<int>(args.H);
  p.G = static_cast<int>(args.G), p.group = static_cast<int>(args.H / args.G);
  p.D = static_cast<int>(args.D), p.E = static_cast<int>(args.E), p.N = static_cast<int>(args.N);
  p.P = static_cast<int>(args.P), p.M = static_cast<int>(args.M);
  const int64_t rows = args.S * p.group;
  const int64_t each = args.B > 0 ? CeilDiv(args.S / args.B * p.group, kPagedRows) : 0;
  p.tiles = static_cast<int>(args.cu_seqlens_q ? rows / kPagedRows + args.B + 2 : args.B * each);
  p.left = args.window_left < 0 ? 1 << 30
                                : static_cast<int>(std::min<int64_t>(args.window_left, 1 << 30));
  p.right = args.causal ? 0 : 1 << 30;
  p.scale = static_cast<float>(ScaleOf(args)), p.softcap = static_cast<float>(args.softcap);
  p.q_aligned = HasAlignedPages(*args.q);
  p.k_aligned = HasAlignedPages(*args.k_cache), p.v_aligned = HasAlignedPages(*args.v_cache);
  p.count = 1, p.part = 1 << 30;
  return p;
}

// Parts of split_size, or so many that the blocks, of which `slots` run at once, take as few turns
// of as few keys as may be: no fewer than 128; in decoding, where lengths may differ much, no more
// than 4,096.
int32_t Divide(AnyopCall* call, int64_t split_size, int64_t slots, PagedView* p) {
  if (split_size > 0) return TakeParts(call, split_size, p);
  constexpr int64_t kMostTurns = 4, kStart = 128;  // keys that a block could read while it starts
  const int64_t places = std::max<int64_t>(p->places, 1);
  const int64_t blocks = std::max<int64_t>(int64_t{p->tiles} * p->G, 1);
  const bool decodes = int64_t{p->S} * p->group <= int64_t{kPagedRows} * p->B;
  const int64_t fewest = decodes ? CeilDiv(places, int64_t{4096}) : 1;
  int64_t part = places, least = INT64_MAX;
  for (int64_t turns = 1; turns <= kMostTurns; ++turns) {
    const int64_t count = std::max(fewest, turns * slots / blocks);
    const int64_t keys =
        CeilDiv(std::max<int64_t>(CeilDiv(places, count), 128), int64_t{kPagedKeys}) * kPagedKeys;
    const int64_t time = CeilDiv(blocks * CeilDiv(places, keys), slots) * (keys + kStart);
    if (time < least) least = time, part = keys;
  }
  return TakeParts(call, part, p);
}

template <typename T, typename C, int kFeatures, bool kShares>
int32_t RunPages(PagedView p, int64_t split_size, AnyopCall* call) {
  constexpr auto kernel = AttendPages<T, C, kFeatures, kShares>;
  constexpr uint32_t kBytes = kShares ? PagedTile<T, C, kFeatures, true>::kSharedBytes
                                      : std::max(PagedTile<T, C, kFeatures, true>::kSharedBytes,
                                                 PagedTile<T, C, kFeatures, false>::kSharedBytes);
  Limits limits;
  if (const int32_t status = ReadLimits(call, &limits)) return status;
  const int64_t slots = limits.multiprocessors * kPagedBlocks<T, C, kFeatures, kShares>;
  if (const int32_t status = Divide(call, split_size, slots, &p)) return status;
  if (const int32_t status = AllowShared<kernel>(call, kBytes)) return status;
  const Launch launch = {dim3(static_cast<unsigned>(p.tiles) * p.G, static_cast<unsigned>(p.count)),
                         dim3(128), kBytes, true};
  if (const int32_t status = launch.Run(call, kernel, p)) return status;
  return RunJoin<T>(p, call);
}
template <typename T, typename C, int kFeatures>
int32_t RunPages(const PagedView& p, int64_t split_size, AnyopCall* call) {
  return !p.cu_q && p.each * p.group <= kSharedRows
             ? RunPages<T, C, kFeatures, true>(p, split_size, call)
             : RunPages<T, C, kFeatures, false>(p, split_size, call);
}

template <typename T, typename C>
int32_t RunFeatures(const PagedView& p, int64_t split_size, AnyopCall* call) {
  const int widest = std::max(p.D, p.E);
  if (widest <= 64) return RunPages<T, C, 64>(p, split_size, call);
  if (widest <= 128) return RunPages<T, C, 128>(p, split_size, call);
  return RunPages<T, C, 256>(p, split_size, call);
}

template <typename C>
int32_t RunPlainly(const PagedView& p, AnyopCall* call) {
  const Launch launch = {dim3(static_cast<unsigned>(CeilDiv(int64_t{p.S} * p.H, int64_t{4}))),
                         dim3(128)};
  return launch.Run(call, AttendPagesPlainly<C>, p);
}

int32_t AttendPaged(const AttentionPagedArgs& args, AnyopCall* call) {
  if (const int32_t status = CheckSoftcap(call, args.softcap)) return status;
  if (const int32_t status = CheckQueries(call, args)) return status;
  if (args.H == 0 || args.S == 0 || (args.E == 0 && !args.lse)) return kAnyopOk;
  constexpr int64_t kMost = 1 << 30;  // of rows and keys, for 32 bits
  if (args.S > kMost / args.H || args.B > kMost / args.G || CountPlaces(args) > kMost ||
      args.H > 65535)
    return call->fail(call, kAnyopDeclined,
                      "it takes fewer than 2^30 heads of queries, and keys, and 2^16 heads");
  const PagedView p = ViewOfPages(args);
  const bool is_bytes = args.k_cache->dtype_bits == 8;
  const AnyopDtype dtype = AnyopDtypeOf(args.q);
  if (dtype == kAnyopFloat32)
    return is_bytes ? RunPlainly<uint8_t>(p, call) : RunPlainly<float>(p, call);
  const int64_t split_size = args.split_size;
  if (dtype == kAnyopFloat16)
    return is_bytes ? RunFeatures<__half, uint8_t>(p, split_size, call)
                    : RunFeatures<__half, __half>(p, split_size, call);
  return is_bytes ? RunFeatures<__nv_bfloat16, uint8_t>(p, split_size, call)
                  : RunFeatures<__nv_bfloat16, __nv_bfloat16>(p, split_size, call);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_attention_paged_cuda(const AttentionPagedArgs* args, AnyopCall* call) {
  return anyop::cuda::AttendPaged(*args, call);
}
