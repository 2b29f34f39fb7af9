// SPDX-License-Identifier: Apache-2.0
// Attention to pages on CUDA: which kernel.
#include "attention_paged_cuda.h"
#include "attention_paged_few.h"
#include "attention_paged_plain.h"

namespace anyop::cuda {
namespace {

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
  // With a split_size the bits are those of a call with cu_seqlens_q.
  if (FewView few; split_size == 0 && MakeFew(p, sizeof(C), &few)) {
    Limits limits;
    if (const int32_t status = ReadLimits(call, &limits)) return status;
    return RunFew<T, C>(p, few, limits.multiprocessors, call);
  }
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
  if (!AreCounted(args))
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
