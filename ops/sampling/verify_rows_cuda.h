// SPDX-License-Identifier: Apache-2.0
// Chains and trees of drafted tokens on CUDA: a team of filter_rows_cuda.h has one. All its warps
// walk it; then each thread draws from its part of one row of target and one of draft, read once.
#pragma once

#define ANYOP_BLOCKS_MEET 1
#include "filter_rows_cuda.h"
#include "verify_rows.h"

namespace anyop::cuda {
namespace {

template <typename Drafted>
struct Verified {
  const void *target, *draft;
  Drafted drafted;
  int parts, share;
  TeamMemory* memory;
  Place* lists;
};

// The lanes of a warp, whose loads do not wait for one another's.
struct LanesOfWarp {
  static constexpr int kCount = 32;
  __device__ int lane() const { return static_cast<int>(threadIdx.x) % 32; }
  __device__ unsigned Votes(bool yes) const { return __ballot_sync(~0u, yes); }
};

// The best entry of a thread's elements; all bits where one is no probability. less: what draft
// has, and rejected tokens, are left out. shared->limit: the best quotient of all threads so far.
template <typename T, typename Drafted>
__device__ Sum RaceRest(const TeamRow<T>& row, const Verified<Drafted>& p, int64_t b,
                        const sampling::End& end, bool less) {
  const auto seed = static_cast<uint64_t>(p.drafted.seed[b]);
  const auto offset = static_cast<uint64_t>(p.drafted.offset[b]);
  const bool has_draft = less && end.draft >= 0;
  const T* const draft =
      has_draft ? static_cast<const T*>(p.draft) + end.draft * p.drafted.V + row.begin : row.own;
  const T* const rows[] = {row.own, draft};
  unsigned* const limit_of_all = &row.shared->limit;
  Sum best = 0;
  bool bad = false;
  row.template EachRunOf<2>(rows, row.runs(), 0, [&](int v, const Unpacked<float>(&x)[2]) {
    const float limit = __uint_as_float(*static_cast<volatile unsigned*>(limit_of_all));
    const PhiloxWords words = sampling::WordsOfFour(seed, offset, static_cast<uint64_t>(v) / 4);
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      const float target = x[0][j], drawn = has_draft ? x[1][j] : 0.0f, rest = target - drawn;
      bad |= !sampling::IsProb(target) || !sampling::IsProb(drawn);
      // An exponential is not below its uniform variable, but for roundings.
      const float uniform = __uint_as_float(words.at[j] >> 9 | 0x3f800000u) - 1.0f;
      if (rest * 1.0001f < limit * uniform) continue;
      const int token = v + j;
      if (!(sampling::RestOf(target, drawn) > 0) || token >= row.end) continue;
      const unsigned quotient = __float_as_uint(sampling::RaceOf(rest, words.at[j]));
      const Sum entry = Sum{quotient} << 32 | static_cast<uint32_t>(~token);
      if (entry <= best || (less && p.drafted.IsRejected(b, end, token))) continue;
      best = entry;
      atomicMax(limit_of_all, quotient);
    }
  });
  return bad ? ~Sum{0} : best;
}

template <typename T, typename Drafted>
__global__ void __launch_bounds__(kTeamThreads, 1)
    Verify(const __grid_constant__ Verified<Drafted> p) {
  TeamRow<T> row(p);
  const auto* const target = static_cast<const T*>(p.target);
  const auto* const draft = static_cast<const T*>(p.draft);
  const int64_t V = p.drafted.V;
  const bool writes = row.part == 0 && threadIdx.x < 32;
  for (int64_t b = row.team(); b < p.drafted.B; b += gridDim.x / p.parts) {
    const sampling::End end = p.drafted.Walk(
        b, LanesOfWarp(), writes,
        [=](int64_t r, int64_t token) { return Widen(target[r * V + token]); },
        [=](int64_t r, int64_t token) { return Widen(draft[r * V + token]); });
    if (!end.token) continue;
    row.Prefetch(target + end.target * V, V);
    if (end.draft >= 0) row.Prefetch(draft + end.draft * V, V);
    row.Begin(target + end.target * V, V);
    Place best = row.MostOfTeam(RaceRest(row, p, b, end, true));
    if (best == 0) best = row.MostOfTeam(RaceRest(row, p, b, end, false));
    if (writes && threadIdx.x == 0)
      *end.token = best == ~Place{0} ? -1 : static_cast<int32_t>(TokenOf(best));
    __syncthreads();
  }
  row.Leave();
}

template <typename Drafted>
int32_t RunVerify(AnyopCall* call, const Drafted& drafted, const AnyopTensor* target,
                  const AnyopTensor* draft) {
  if (drafted.B == 0) return kAnyopOk;
  const Verified<Drafted> verified = {
      target->data, draft ? draft->data : nullptr, drafted, 1, 0, nullptr, nullptr};
  return WithFloat32Sums(AnyopDtypeOf(target), [&](auto zero) {
    return RunTeams<Verify<decltype(zero), Drafted>, 1>(call, drafted.B, drafted.V, verified);
  });
}

}  // namespace
}  // namespace anyop::cuda
