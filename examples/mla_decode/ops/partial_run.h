// SPDX-License-Identifier: Apache-2.0
// Which CUDA kernel serves a call of decode or sparse_decode.
#pragma once

#include "partial_mma.h"

namespace anyop::cuda {
namespace {

template <typename T, typename Args, typename Tokens>
int32_t RunAs(const Args& args, AnyopCall* call, const Tokens& tokens) {
  const Attention<T, Tokens> p = {static_cast<const T*>(args.q->data),
                                  static_cast<const T*>(args.cache->data),
                                  static_cast<float*>(args.partial->data),
                                  static_cast<float*>(args.lse->data),
                                  args.q->strides[0],
                                  args.q->strides[1],
                                  args.cache->strides[0],
                                  args.cache->strides[1],
                                  args.B,
                                  args.H,
                                  args.S,
                                  args.splits,
                                  static_cast<int>(args.W),
                                  static_cast<int>(args.R),
                                  mla::ScaleOf(args),
                                  tokens};
  if constexpr (sizeof(T) == 2) {
    // With two tiles of tokens and 32 heads a multiprocessor has room for one block: measured 0.85
    // times as fast as two blocks with one tile each.
    if (FitsTiles(p)) return p.H <= 16 ? RunTiles<16, 2>(call, p) : RunTiles<32, 1>(call, p);
  }
  return RunAny(call, p);
}

template <typename Args, typename Tokens>
int32_t RunParts(const Args& args, AnyopCall* call, const Tokens& tokens) {
  if (args.B == 0 || args.H == 0) return kAnyopOk;
  switch (AnyopDtypeOf(args.q)) {
    case kAnyopFloat16:
      return RunAs<__half>(args, call, tokens);
    case kAnyopBFloat16:
      return RunAs<__nv_bfloat16>(args, call, tokens);
    default:  // float32, as the schemas say
      return RunAs<float>(args, call, tokens);
  }
}

}  // namespace
}  // namespace anyop::cuda
