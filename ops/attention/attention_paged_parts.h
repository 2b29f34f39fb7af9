// SPDX-License-Identifier: Apache-2.0
// Attention to pages on CUDA: how a call is seen, and into how many parts keys are divided.
#pragma once

#include "anyop/ops/attention_paged.h"
#include "attention_paged_join.h"

namespace anyop::cuda {
namespace {

// Of tensors (tokens, heads, features) or (tokens, heads), `each` tokens a sequence.
inline Steps StepsOfTokens(const AnyopTensor& x, int64_t each) {
  return {each * x.strides[0], x.strides[1], x.strides[0]};
}
inline Steps StepsOfPages(const AnyopTensor& x) {
  return {x.strides[0], x.strides[2], x.strides[1]};
}

template <typename T>
const T* DataOf(const AnyopTensor* x) {
  return x ? static_cast<const T*>(x->data) : nullptr;
}

// Rows and keys are counted by 32 bits, and heads lie along a grid's y. Not of no heads.
inline bool AreCounted(const AttentionPagedArgs& args) {
  constexpr int64_t kMost = 1 << 30;
  return args.S <= kMost / args.H && args.B <= kMost / args.G && CountPlaces(args) <= kMost &&
         args.H <= 65535;
}

inline PagedView ViewOfPages(const AttentionPagedArgs& args) {
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
inline int32_t Divide(AnyopCall* call, int64_t split_size, int64_t slots, PagedView* p) {
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

}  // namespace
}  // namespace anyop::cuda
