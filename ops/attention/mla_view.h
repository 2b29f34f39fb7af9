// SPDX-License-Identifier: Apache-2.0
// Calls of latent attention as its kernels on CUDA read them.
#pragma once

#include "attention_paged_view.h"

namespace anyop::cuda {
namespace {

// Both say whether sizes fit 32 bits.
constexpr int64_t kMostLatent = 1 << 30;  // queries' heads, keys, pages

template <typename Args>
bool ViewLatent(const Args& args, PagedView* view) {
  if (args.B * args.S > kMostLatent / std::max<int64_t>(args.H, 1) || args.H > 65535 ||
      CountPlaces(args.M, args.P) > kMostLatent || args.N > kMostLatent)
    return false;
  PagedView& p = *view;
  p.q = args.q->data, p.k = args.cache->data, p.out = args.out->data;
  p.lse = args.lse ? static_cast<float*>(args.lse->data) : nullptr;
  p.table = static_cast<const int32_t*>(args.page_table->data);
  p.lengths = static_cast<const int32_t*>(args.seqlens_k->data);
  const auto steps_of = [](const AnyopTensor& x) {  // (B, S, H, ...)
    return Steps{x.strides[0], x.strides[2], x.strides[1]};
  };
  p.q_steps = steps_of(*args.q), p.out_steps = steps_of(*args.out);
  if (args.lse) p.lse_steps = steps_of(*args.lse);
  p.k_steps = {args.cache->strides[0], 0, args.cache->strides[1]};
  p.places = CountPlaces(args.M, args.P);
  p.B = static_cast<int>(args.B), p.each = static_cast<int>(args.S), p.S = p.B * p.each;
  p.H = p.group = static_cast<int>(args.H), p.G = 1;
  p.D = static_cast<int>(args.W), p.E = static_cast<int>(args.R);
  p.N = static_cast<int>(args.N), p.P = static_cast<int>(args.P), p.M = static_cast<int>(args.M);
  p.left = 1 << 30, p.right = args.causal ? 0 : 1 << 30;
  p.scale = static_cast<float>(anyop::ScaleOr(args.scale, args.W));
  p.q_aligned = HasAlignedPages(*args.q), p.k_aligned = HasAlignedPages(*args.cache);
  p.count = 1, p.part = 1 << 30;
  return true;
}

// Each token is a sequence of one query, whose keys are its K indices.
template <typename Args>
bool ViewListed(const Args& args, int64_t W, int64_t R, PagedView* view) {
  if (args.T > kMostLatent / std::max<int64_t>(args.H, 1) || args.H > 65535 ||
      args.K > kMostLatent || args.N > kMostLatent)
    return false;
  PagedView& p = *view;
  p.q = args.q->data, p.k = args.cache->data, p.out = args.out->data;
  p.lse = args.lse ? static_cast<float*>(args.lse->data) : nullptr;
  p.sinks = args.sinks ? static_cast<const float*>(args.sinks->data) : nullptr;
  p.indices = static_cast<const int32_t*>(args.indices->data);
  p.lengths = args.lengths ? static_cast<const int32_t*>(args.lengths->data) : nullptr;
  const auto steps_of = [](const AnyopTensor& x) {  // (T, H, ...)
    return Steps{x.strides[0], x.strides[1], 0};
  };
  p.q_steps = steps_of(*args.q), p.out_steps = steps_of(*args.out);
  if (args.lse) p.lse_steps = steps_of(*args.lse);
  p.k_steps = {args.cache->strides[0], 0, args.cache->strides[1]};
  p.places = args.K;
  p.B = p.S = static_cast<int>(args.T), p.each = 1;
  p.H = p.group = static_cast<int>(args.H), p.G = 1;
  p.D = static_cast<int>(W), p.E = static_cast<int>(R);
  p.N = static_cast<int>(args.N), p.P = static_cast<int>(args.P), p.M = static_cast<int>(args.K);
  p.left = p.right = 1 << 30;
  p.scale = static_cast<float>(anyop::ScaleOr(args.scale, W));
  p.q_aligned = HasAlignedPages(*args.q), p.k_aligned = HasAlignedPages(*args.cache);
  p.count = 1, p.part = 1 << 30;
  return true;
}

inline int32_t DeclineLatent(AnyopCall* call) {
  return call->fail(call, kAnyopDeclined, "it takes fewer than 2^30 heads of queries, and keys");
}

}  // namespace
}  // namespace anyop::cuda
