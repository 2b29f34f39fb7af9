// SPDX-License-Identifier: Apache-2.0
// Chains and trees of drafted tokens on CUDA: a team of filter_rows_cuda.h has one. All its threads
// walk it; then each draws from its part of one row of target and one of draft, read once.
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

// The best entry of a thread's elements; all bits where one is no probability. less: what draft
// has, and rejected tokens, are left out.
template <typename T, typename Drafted>
__device__ Sum RaceRest(const TeamRow<T>& row, const Verified<Drafted>& p, int64_t b,
                        const sampling::End& end, bool less) {
  const auto seed = static_cast<uint64_t>(p.drafted.seed[b]);
  const auto offset = static_cast<uint64_t>(p.drafted.offset[b]);
  const T* const draft =
      less && end.draft >= 0 ? static_cast<const T*>(p.draft) + end.draft * p.drafted.V : nullptr;
  Sum best = 0;
  for (int64_t v = row.begin + 4 * threadIdx.x; v < row.end; v += 4 * blockDim.x) {
    const PhiloxWords words = sampling::WordsOfFour(seed, offset, static_cast<uint64_t>(v / 4));
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (v + j >= row.end) continue;
      const float most = Widen(row.x[v + j]), drawn = draft ? Widen(draft[v + j]) : 0.0f;
      if (!sampling::IsProb(most) || !sampling::IsProb(drawn)) return ~Sum{0};
      const float rest = sampling::RestOf(most, drawn);
      if (!(rest > 0)) continue;
      const Sum entry = static_cast<Sum>(__float_as_uint(sampling::RaceOf(rest, words.at[j])))
                            << 32 |
                        static_cast<uint32_t>(~(v + j));
      if (entry > best && !(less && p.drafted.IsRejected(b, end, v + j))) best = entry;
    }
  }
  return best;
}

template <typename T, typename Drafted>
__global__ void __launch_bounds__(kTeamThreads)
    Verify(const __grid_constant__ Verified<Drafted> p) {
  TeamRow<T> row(p);
  const auto* const target = static_cast<const T*>(p.target);
  const auto* const draft = static_cast<const T*>(p.draft);
  const int64_t V = p.drafted.V;
  const bool writes = row.part == 0 && threadIdx.x == 0;
  for (int64_t b = row.team(); b < p.drafted.B; b += gridDim.x / p.parts) {
    const sampling::End end = p.drafted.Walk(
        b, writes, [=](int64_t r, int64_t token) { return Widen(target[r * V + token]); },
        [=](int64_t r, int64_t token) { return Widen(draft[r * V + token]); });
    if (!end.token) continue;
    row.Begin(target + end.target * V, V);
    Place best = row.MostOfTeam(RaceRest(row, p, b, end, true));
    if (best == 0) best = row.MostOfTeam(RaceRest(row, p, b, end, false));
    if (writes) *end.token = best == ~Place{0} ? -1 : static_cast<int32_t>(TokenOf(best));
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
    return RunTeams<Verify<decltype(zero), Drafted>>(call, drafted.B, drafted.V, verified);
  });
}

}  // namespace
}  // namespace anyop::cuda
