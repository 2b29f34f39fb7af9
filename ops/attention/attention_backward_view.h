// SPDX-License-Identifier: Apache-2.0
// Gradients of attention on CUDA: what their kernels are told, made of an operator's arguments.
#pragma once

#include "attention_backward_cuda.h"

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

// In tiles of so many queries, and of so many keys.
template <bool kPacked, typename Args>
GradientView MakeView(const Args& args, int rows, int key_rows) {
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
  p.key_tiles =
      static_cast<int>(kPacked ? args.T / key_rows + args.B + 2 : CeilDiv(args.T, key_rows));
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

}  // namespace
}  // namespace anyop::cuda
