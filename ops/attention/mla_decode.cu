// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention to pages of latent rows on CUDA.
#include "anyop/ops/mla_decode.h"
#include "mla_cuda.h"

namespace anyop::cuda {
namespace {

PagedView ViewOfLatent(const MlaDecodeArgs& args) {
  PagedView p = {};
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
  return p;
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_mla_decode_cuda(const MlaDecodeArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  constexpr int64_t kMost = 1 << 30;  // of queries, keys and pages, for 32 bits
  if (args->B * args->S > kMost / std::max<int64_t>(args->H, 1) || args->H > 65535 ||
      anyop::CountPlaces(args->M, args->P) > kMost || args->N > kMost)
    return call->fail(call, kAnyopDeclined, "it takes fewer than 2^30 heads of queries, and keys");
  if (args->B == 0) return kAnyopOk;
  PagedView p = ViewOfLatent(*args);
  return AttendToLatent<false>(&p, AnyopDtypeOf(args->q), args->split_size, call);
}
