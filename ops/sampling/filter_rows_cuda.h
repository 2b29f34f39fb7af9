// SPDX-License-Identifier: Apache-2.0
// Rows of the sampling operators on CUDA: a team of blocks has a row, each a part of it, and reads
// it again from the second cache. The last token that a filter keeps is found by counting digits
// in shared memory. What is near it goes to a list there, as soon as it fits: then the row is read
// no more. All sums are of integers, so that a token does not depend on the size of teams.
//
// No __shared__ variables (ANYOP_BLOCKS_MEET): blocks that run by turns on a CPU have memory of
// their own only where the launch asks for it.
#pragma once

#include "anyop/cuda.h"
#include "draw.h"

namespace anyop::cuda {
namespace {

using sampling::DigitOf;
using sampling::kDigits;
using sampling::MassOf;
using sampling::Place;
using sampling::PlaceOf;
using sampling::Scale;
using sampling::TokenOf;
using sampling::ValueOf;
using Sum = unsigned long long;

constexpr int kTeamThreads = 1024, kListed = 3072;
#if ANYOP_PTX || defined(ANYOP_WAIT_FOR_GRID)
constexpr int kMostParts = 16;
#else
constexpr int kMostParts = 1;  // blocks have no way to wait for one another
#endif

// What the blocks of a row show one another, in global memory. Sums take three turns: those of the
// next one are cleared while this one's are added.
struct TeamMemory {
  Sum sums[3][kDigits];
  Sum words[2][64];
  unsigned here, unused[31];  // blocks that have come to a meeting; 0 at first
};
struct TeamShared {
  Sum sums[kDigits];
  Place list[kListed];
  Sum words[2][32];
  Sum found[4];
  int listed;
};

template <typename T>
struct TeamRow {
  const T* x = nullptr;
  int64_t begin = 0, end = 0;  // of this block
  TeamShared* shared;
  TeamMemory* memory;  // NULL: the block is alone
  int part, parts;
  unsigned turns = 0, words = 0, meetings = 0;
  int listed = -1;  // the row is in the list

  int64_t team;  // from 0, of those of the grid

  __device__ TeamRow(int parts, TeamMemory* memories)
      : shared(reinterpret_cast<TeamShared*>(DynamicShared())),
        part(static_cast<int>(blockIdx.x) % parts),
        parts(parts),
        team(blockIdx.x / parts) {
    memory = memories + team;
  }

  __device__ void Begin(const T* row, int64_t V) {
    x = row;
    begin = V * part / parts / 4 * 4;
    end = part + 1 == parts ? V : V * (part + 1) / parts / 4 * 4;
    listed = -1;
  }

  // Waits until all blocks of the row are here, and sees what they have written. All run at once.
  __device__ void Meet() {
    if (parts == 1) return __syncthreads();
#if ANYOP_PTX
    __syncthreads();
    if (threadIdx.x == 0) {
      const unsigned all = ++meetings * static_cast<unsigned>(parts);
      unsigned here;
      asm volatile(
          "fence.acq_rel.gpu;\n\tred.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(&memory->here)
          : "memory");
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(here) : "l"(&memory->here));
      } while (here < all);
      asm volatile("fence.acq_rel.gpu;" ::: "memory");
    }
    __syncthreads();
#elif defined(ANYOP_WAIT_FOR_GRID)
    ANYOP_WAIT_FOR_GRID();
#endif
  }

  // body(place) of each element of this block.
  template <typename Body>
  __device__ void Each(int listed, const Body& body) const {
    if (listed >= 0) {
      for (int i = threadIdx.x; i < listed; i += blockDim.x) body(shared->list[i]);
    } else {
#pragma unroll 4
      for (int64_t v = begin + threadIdx.x; v < end; v += blockDim.x)
        body(PlaceOf(Widen(x[v]), static_cast<uint32_t>(v)));
    }
  }
  template <typename Body>
  __device__ void Each(const Body& body) const {
    Each(listed, body);
  }

  // join(a, b) of all threads of the row, for all of them. Its order does not matter.
  template <typename Join>
  __device__ Sum OfTeam(Sum own, const Join& join) {
    Sum* const turn = shared->words[words % 2];
    for (int step = 16; step; step /= 2) own = join(own, __shfl_xor_sync(~0u, own, step));
    if (threadIdx.x % 32 == 0) turn[threadIdx.x / 32] = own;
    __syncthreads();
    own = turn[0];
    for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) own = join(own, turn[warp]);
    if (parts > 1) {
      volatile Sum* const of_parts = memory->words[words % 2];
      if (threadIdx.x == 0) of_parts[part] = own;
      Meet();
      own = of_parts[0];
      for (int p = 1; p < parts; ++p) own = join(own, of_parts[p]);
    }
    ++words;
    return own;
  }
  __device__ Sum MostOfTeam(Sum own) {
    return OfTeam(own, [](Sum a, Sum b) { return a > b ? a : b; });
  }
  __device__ Sum SumOfTeam(Sum own) {
    return OfTeam(own, [](Sum a, Sum b) { return a + b; });
  }

  // shared->sums of all blocks.
  __device__ void JoinSums() {
    __syncthreads();
    if (parts == 1) return;
    Sum* const turn = memory->sums[turns % 3];
    Sum* const next = memory->sums[(turns + 1) % 3];
    for (int i = threadIdx.x; i < kDigits; i += blockDim.x) {
      if (shared->sums[i]) atomicAdd(turn + i, shared->sums[i]);
      if (part == 0) next[i] = 0;
    }
    Meet();
    for (int i = threadIdx.x; i < kDigits; i += blockDim.x)
      shared->sums[i] = static_cast<volatile Sum*>(turn)[i];
    ++turns;
    __syncthreads();
  }

  // found[0] the greatest digit down to which sums reach wanted, [1] their sum before it, [2] its
  // own, [3] the sum of all. By the first warp, each lane a run of digits.
  __device__ void FindDigit(Sum wanted) {
    if (threadIdx.x < 32) {
      constexpr int kRun = kDigits / 32;
      const int first = kDigits - 1 - static_cast<int>(threadIdx.x) * kRun;  // downwards
      Sum own = 0;
      for (int i = 0; i < kRun; ++i) own += shared->sums[first - i];
      Sum before = own;
      for (unsigned step = 1; step < 32; step *= 2) {
        const Sum other = __shfl_up_sync(~0u, before, step);
        if (threadIdx.x >= step) before += other;
      }
      const Sum all = __shfl_sync(~0u, before, 31);
      before -= own;
      if (threadIdx.x == 0) shared->found[3] = all;
      if (before < wanted && wanted <= before + own) {
        int at = first;
        for (; before + shared->sums[at] < wanted; --at) before += shared->sums[at];
        shared->found[0] = static_cast<Sum>(at);
        shared->found[1] = before;
        shared->found[2] = shared->sums[at];
      }
    }
    __syncthreads();
  }

  // The place of the last element that is needed, from the greatest on, until measures reach
  // wanted; or one before which there is none but it. What is behind `from` is left out. Where all
  // do not reach it: from.
  template <typename Measure>
  __device__ Place FindLast(Place from, Sum wanted, const Measure& measure) {
    Place prefix = 0, mask = 0;
    int known = listed;
    for (int level = 0; level < sampling::kLevels; ++level) {
      for (int i = threadIdx.x; i < kDigits; i += blockDim.x) shared->sums[i] = 0;
      const bool collects = known < 0 && level > 0;
      if (threadIdx.x == 0) shared->listed = 0;
      __syncthreads();
      Each(known, [&](Place place) {
        if (place < from || (place & mask) != prefix) return;
        if (const Sum own = measure(place)) {
          atomicAdd(&shared->sums[DigitOf(place, level)], own);
          if (collects) List(place);
        }
      });
      JoinSums();
      if (collects && shared->listed <= kListed) known = shared->listed;
      FindDigit(wanted);
      if (shared->found[3] < wanted) return from;
      wanted -= shared->found[1];
      prefix |= static_cast<Place>(shared->found[0]) << sampling::ShiftOf(level);
      mask |= static_cast<Place>(kDigits - 1) << sampling::ShiftOf(level);
      const bool is_all = shared->found[2] == wanted;
      __syncthreads();
      if (is_all) break;
    }
    return prefix;
  }
  __device__ void List(Place place) {
    const int at = atomicAdd(&shared->listed, 1);
    if (at < kListed) shared->list[at] = place;
  }

  // Lists what may be among the k first, for small k: the k-th of what each thread saw as its
  // greatest has at least k before it.
  __device__ void ListNear(Sum k, Place own) {
    if (k > blockDim.x) return;
    for (int i = threadIdx.x; i < kDigits; i += blockDim.x) shared->sums[i] = 0;
    if (threadIdx.x == 0) shared->listed = 0;
    __syncthreads();
    if (own) atomicAdd(&shared->sums[DigitOf(own, 0)], Sum{1});
    __syncthreads();
    FindDigit(k);
    const Place least = shared->found[3] < k ? 0 : shared->found[0] << sampling::ShiftOf(0);
    Each([&](Place place) {
      if (place >= least) List(place);
    });
    __syncthreads();
    if (shared->listed <= kListed) listed = shared->listed;
    __syncthreads();
  }
};

// Of a thread's own elements; all where one is NaN, or a probability is below 0.
template <typename T>
__device__ Place FindMost(const TeamRow<T>& row, bool is_probs) {
  Place own = 0;
  bool bad = false;
#pragma unroll 4
  for (int64_t v = row.begin + threadIdx.x; v < row.end; v += blockDim.x) {
    const float x = Widen(row.x[v]);
    bad = bad || !(is_probs ? x >= 0 : x == x);
    const Place place = PlaceOf(x, static_cast<uint32_t>(v));
    own = place > own ? place : own;
  }
  return bad ? ~Place{0} : own;
}

// Starts a kernel of teams for B rows of V. Few rows get teams of several blocks, which run at once
// or not at all; then, and of many rows, each is a block's.
template <auto kKernel, typename Problem>
int32_t RunTeams(AnyopCall* call, int64_t B, int64_t V, Problem problem) {
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  if (int32_t status = AllowShared<kKernel>(call, sizeof(TeamShared))) return status;
  const auto fit = static_cast<int>(limits.multiprocessors / B), need = static_cast<int>(V / 4096);
  problem.parts = fit < need ? fit : need;
  if (problem.parts > kMostParts) problem.parts = kMostParts;
  if (problem.parts > 1) {
    const int64_t bytes = B * int64_t{sizeof(TeamMemory)};
    problem.memory = static_cast<TeamMemory*>(call->workspace(call, bytes));
    if (!problem.memory) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
    if (int32_t status = Check(call, cudaMemsetAsync(problem.memory, 0, bytes, StreamOf(call)),
                               "clearing its workspace"))
      return status;
    Launch launch{dim3(static_cast<unsigned>(B * problem.parts)), dim3(kTeamThreads),
                  sizeof(TeamShared)};
    launch.cooperative = true;
    const cudaError_t started = launch.Start(call, kKernel, problem);
    if (started != cudaErrorCooperativeLaunchTooLarge && started != cudaErrorNotSupported)
      return Check(call, started, "starting its kernel");
    cudaGetLastError();  // others have a share of the device
  }
  problem.parts = 1;
  const int64_t blocks = B < 65535 ? B : 65535;
  const Launch launch{dim3(static_cast<unsigned>(blocks)), dim3(kTeamThreads), sizeof(TeamShared)};
  return launch.Run(call, kKernel, problem);
}

}  // namespace
}  // namespace anyop::cuda
