// SPDX-License-Identifier: Apache-2.0
// Multi-head latent attention to the rows that indices name, of floats or of 656 bytes, on CUDA.
#include "anyop/ops/mla_sparse.h"
#include "anyop/ops/mla_sparse_fp8.h"
#include "mla_cuda.h"

namespace anyop::cuda {
namespace {

// Each token is a sequence of one query, whose keys are its K indices.
template <typename Args>
PagedView ViewOfListed(const Args& args, int64_t W, int64_t R) {
  PagedView p = {};
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
  return p;
}

template <bool kBytes, typename Args>
int32_t AttendListed(const Args& args, int64_t W, int64_t R, AnyopCall* call) {
  constexpr int64_t kMost = 1 << 30;
  if (args.T > kMost / std::max<int64_t>(args.H, 1) || args.H > 65535 || args.K > kMost ||
      args.N > kMost)
    return call->fail(call, kAnyopDeclined, "it takes fewer than 2^30 heads of queries, and keys");
  PagedView p = ViewOfListed(args, W, R);
  return AttendToLatent<kBytes>(&p, AnyopDtypeOf(args.q), 0, call);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_mla_sparse_cuda(const MlaSparseArgs* args, AnyopCall* call) {
  return anyop::cuda::AttendListed<false>(*args, args->W, args->R, call);
}
extern "C" int32_t anyop_mla_sparse_fp8_cuda(const MlaSparseFp8Args* args, AnyopCall* call) {
  return anyop::cuda::AttendListed<true>(*args, 576, 512, call);
}
