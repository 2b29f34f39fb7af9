// SPDX-License-Identifier: Apache-2.0
// Attention on Hopper: which tiles, by dtype and features.
#include "anyop/ops/attention.h"
#include "anyop/ops/attention_varlen.h"
#include "anyop/ops/attention_varlen_with_lse.h"
#include "anyop/ops/attention_with_lse.h"
#include "attention_sm90_band.h"
#include "attention_sm90_decode.h"
#include "attention_sm90_pages.h"

namespace anyop::cuda {
namespace {

// make(rows) is the view in tiles of so many queries.
template <typename T, int kD, int kE, typename Make>
int32_t RunCapped(const AttentionProblem& problem, const Make& make, AnyopCall* call) {
  if (problem.softcap > 0)
    return RunOnHopper<T, kD, kE, true>(problem, make(HopperTile<kD, kE, true>::kRows), call);
  return RunOnHopper<T, kD, kE, false>(problem, make(HopperTile<kD, kE, false>::kRows), call);
}

template <typename T, typename Make>
int32_t RunFeatures(const AttentionProblem& p, const Make& make, AnyopCall* call) {
  if (p.D <= 64 && p.E <= 64) {
    if (IsBand(p))
      if (const AttentionView view = make(HopperBand::kRows); !view.table)
        return RunInBand<T>(p, view, call);
    return RunCapped<T, 64, 64>(p, make, call);
  }
  if (p.D <= 128 && p.E <= 128) return RunCapped<T, 128, 128>(p, make, call);
  if (p.D <= 192 && p.E <= 128) return RunCapped<T, 192, 128>(p, make, call);
  return RunCapped<T, 256, 256>(p, make, call);
}

template <typename Make>
int32_t Attend(const AttentionProblem& p, const Make& make, AnyopCall* call) {
  const bool is_aligned = HasAlignedRows(*p.q) && HasAlignedRows(*p.k) && HasAlignedRows(*p.v) &&
                          HasAlignedRows(*p.out);
  if (p.mask || p.slopes || !(p.scale > 0) || p.T == 0 || p.D == 0 || p.E == 0 || !is_aligned)
    return DeclineHopper(call);
  return AnyopDtypeOf(p.q) == kAnyopFloat16 ? RunFeatures<__half>(p, make, call)
                                            : RunFeatures<__nv_bfloat16>(p, make, call);
}

template <typename Args>
int32_t AttendDense(const Args& args, const AnyopTensor* lse, AnyopCall* call) {
  if (const int32_t status = CheckSoftcap(call, args.softcap)) return status;
  if (args.B == 0 || args.H == 0 || args.S == 0) return kAnyopOk;
  const AttentionProblem problem = ProblemOf(args, lse);
  return Attend(problem, [&](int rows) { return ViewOf(problem, rows); }, call);
}

template <typename Args>
int32_t AttendPacked(const Args& args, const AnyopTensor* lse, AnyopCall* call) {
  if (const int32_t status = CheckSoftcap(call, args.softcap)) return status;
  if (args.H == 0 || args.S == 0) return kAnyopOk;
  const SequenceProblem all(args, lse, {0, args.S, 0, args.T});
  return Attend(all.problem(), [&](int rows) { return PackedView(args, lse, rows); }, call);
}

int32_t AttendToPages(const AttentionPagedArgs& args, AnyopCall* call) {
  if (const int32_t status = CheckSoftcap(call, args.softcap)) return status;
  if (const int32_t status = CheckQueries(call, args)) return status;
  if (args.H == 0 || args.S == 0) return kAnyopOk;
  if (CountPlaces(args) > AttentionView::kMost || args.S > AttentionView::kMost)
    return call->fail(call, kAnyopDeclined, "takes up to 2^28 queries, and keys of a sequence");
  Limits limits;
  if (const int32_t status = ReadLimits(call, &limits)) return status;
  if (AnyopChoice(call) != 1 && !HasEnoughQueries(args, limits.multiprocessors))
    return IsDecoding(args) ? AttendByDecoding(args, limits.multiprocessors, call)
                            : DeclineSilently(call);
  const ProblemOfPages pages(args);
  return Attend(pages.problem(), [&](int rows) { return pages.View(rows); }, call);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_attention_paged_cuda_sm90(const AttentionPagedArgs* args,
                                                   AnyopCall* call) {
  return anyop::cuda::AttendToPages(*args, call);
}
extern "C" int32_t anyop_attention_cuda_sm90(const AttentionArgs* args, AnyopCall* call) {
  return anyop::cuda::AttendDense(*args, nullptr, call);
}
extern "C" int32_t anyop_attention_with_lse_cuda_sm90(const AttentionWithLseArgs* args,
                                                      AnyopCall* call) {
  return anyop::cuda::AttendDense(*args, args->lse, call);
}
extern "C" int32_t anyop_attention_varlen_cuda_sm90(const AttentionVarlenArgs* args,
                                                    AnyopCall* call) {
  return anyop::cuda::AttendPacked(*args, nullptr, call);
}
extern "C" int32_t anyop_attention_varlen_with_lse_cuda_sm90(const AttentionVarlenWithLseArgs* args,
                                                             AnyopCall* call) {
  return anyop::cuda::AttendPacked(*args, args->lse, call);
}
