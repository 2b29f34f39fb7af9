// SPDX-License-Identifier: Apache-2.0
// Rows of the sampling operators on CUDA: a team of blocks, a cluster on Hopper, has a row, each a
// part of it. What may matter goes to a list in shared memory while the row is read for the first
// time; then each block has the lists of all, and the row is read no more. Where the list does not
// hold it, the last token that a filter keeps is found by counting digits of the whole row, which
// is read again from the second cache. All sums are of integers, so that a token does not depend on
// the size of teams.
//
// No __shared__ variables (ANYOP_BLOCKS_MEET): blocks that run by turns on a CPU have memory of
// their own only where the launch asks for it.
#pragma once

#include "anyop/cuda.h"
#include "draw.h"

namespace anyop::cuda {
namespace {

using sampling::DigitOf;
using sampling::FloatOfKey;
using sampling::kDigits;
using sampling::KeyOf;
using sampling::MassOf;
using sampling::Place;
using sampling::PlaceOf;
using sampling::Scale;
using sampling::TokenOf;
using sampling::ValueOf;
using Sum = unsigned long long;

constexpr int kTeamThreads = 512, kListed = 8192;
#if ANYOP_PTX || defined(ANYOP_WAIT_FOR_GRID)
constexpr int kMostParts = 16;
#else
constexpr int kMostParts = 1;  // blocks have no way to wait for one another
#endif
constexpr int kClusterParts = 8;

// What the blocks of a row show one another, in global memory. Sums take three turns: those of the
// next one are cleared while this one's are added.
struct TeamMemory {
  Sum sums[3][kDigits];
  Sum words[2][kMostParts];
  int listed[kMostParts];
  unsigned here, unused[31];  // blocks that have come to a meeting; 0 at first
};
struct TeamShared {
  Sum sums[kDigits];
  Place list[kListed];
  Place near[32];
  Sum words[2][32];
  Sum found[4];
  int listed, count;
  unsigned limit;  // of a race, as a key
};

struct Greater {
  __device__ Sum operator()(Sum a, Sum b) const { return a > b ? a : b; }
};
struct Add {
  __device__ Sum operator()(Sum a, Sum b) const { return a + b; }
};

template <typename T>
struct TeamRow {
  static constexpr int kRun = kPerVector<T>;
  static constexpr int kAhead = sizeof(T) == 4 ? 4 : 2;  // runs of a thread on their way

  const T* x = nullptr;
  int64_t begin = 0, end = 0;  // of this block
  TeamShared* shared;
  TeamMemory* memory;
  Place* lists;  // of all blocks of the team
  int part, parts;
  unsigned turns = 0, words = 0, told = 0, meetings = 0;
  int listed = -1;  // so many of the row are in the list, and no others matter

  int64_t team;  // from 0, of those of the grid

  __device__ TeamRow(int parts, TeamMemory* memories, Place* lists)
      : shared(reinterpret_cast<TeamShared*>(DynamicShared())),
        part(static_cast<int>(blockIdx.x) % parts),
        parts(parts),
        team(blockIdx.x / parts) {
    memory = memories + team;
    this->lists = lists + team * parts * kListed;
  }

  __device__ void Begin(const T* row, int64_t V) {
    x = row;
    begin = V * part / parts / kRun * kRun;
    end = part + 1 == parts ? V : V * (part + 1) / parts / kRun * kRun;
    listed = -1;
    if (threadIdx.x == 0) shared->listed = kListed + 1, shared->limit = 0;
    __syncthreads();
  }

  // Waits until all blocks of the row are here, and sees what they have written. All run at once.
  __device__ void Meet() {
    if (parts == 1) return __syncthreads();
#if ANYOP_PTX
#if __CUDA_ARCH__ >= 900
    unsigned blocks;
    asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(blocks));
    if (blocks > 1) {
      asm volatile(
          "barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::
              : "memory");
      return;
    }
#endif
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

  // body(v, x) of each run of kRun elements from v on, of the first `runs` of this block; behind
  // its end they are `behind`.
  template <typename Body>
  __device__ void EachRun(int64_t runs, float behind, const Body& body) const {
    const bool aligned = reinterpret_cast<uintptr_t>(x + begin) % 16 == 0;
    const int64_t whole = aligned ? (end - begin) / kRun : 0;
    for (int64_t first = threadIdx.x; first < runs; first += kAhead * kTeamThreads) {
      uint4 bits[kAhead];
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int64_t run = first + u * kTeamThreads;
        if (run < whole && run < runs) bits[u] = reinterpret_cast<const uint4*>(x + begin)[run];
      }
      // One copy of the body: a launch reads its code from memory, which takes as long as a row.
#pragma unroll 1
      for (int u = 0; u < kAhead; ++u) {
        const int64_t run = first + u * kTeamThreads, v = begin + run * kRun;
        if (run >= runs) break;
        Unpacked<T> wide;
        if (run < whole) {
          wide = Unpack<T>(bits[0]);
        } else {
#pragma unroll
          for (int j = 0; j < kRun; ++j) wide.at[j] = v + j < end ? Widen(x[v + j]) : behind;
        }
#pragma unroll
        for (int k = 1; k < kAhead; ++k) bits[k - 1] = bits[k];
        body(v, wide.at);
      }
    }
  }
  __device__ int64_t runs() const { return (end - begin + kRun - 1) / kRun; }

  // body(place) of each element of this block.
  template <typename Body>
  __device__ void Each(const Body& body) const {
    EachRun(runs(), 0, [&](int64_t v, const float (&x)[kRun]) {
#pragma unroll
      for (int j = 0; j < kRun; ++j)
        if (v + j < end) body(PlaceOf(x[j], static_cast<uint32_t>(v + j)));
    });
  }
  // body(place) of what is listed.
  template <typename Body>
  __device__ void EachListed(int listed, const Body& body) const {
    for (int i = threadIdx.x; i < listed; i += kTeamThreads) body(shared->list[i]);
  }

  // join(a, b) of all threads of the block, for all of them. Its order does not matter.
  template <typename Join>
  __device__ Sum OfBlock(Sum own, const Join& join) {
    Sum* const turn = shared->words[words++ % 2];
    for (int step = 16; step; step /= 2) own = join(own, __shfl_xor_sync(~0u, own, step));
    if (threadIdx.x % 32 == 0) turn[threadIdx.x / 32] = own;
    __syncthreads();
    own = turn[threadIdx.x % (kTeamThreads / 32)];
    for (int step = kTeamThreads / 64; step; step /= 2)
      own = join(own, __shfl_xor_sync(~0u, own, step));
    return own;
  }
  // Of all blocks.
  template <typename Join>
  __device__ Sum OfTeam(Sum own, const Join& join) {
    own = OfBlock(own, join);
    if (parts > 1) {
      volatile Sum* const of_parts = memory->words[told++ % 2];
      if (threadIdx.x == 0) of_parts[part] = own;
      Meet();
      own = of_parts[0];
      for (int p = 1; p < parts; ++p) own = join(own, of_parts[p]);
    }
    return own;
  }
  __device__ Sum MostOfTeam(Sum own) { return OfTeam(own, Greater()); }
  __device__ Sum SumOfTeam(Sum own) { return OfTeam(own, Add()); }

  // The sum of measures of what is at least `from`, where that is known to be listed of the list.
  template <typename Measure>
  __device__ Sum SumFrom(Place from, const Measure& measure) {
    Sum own = 0;
    const auto add = [&](Place place) { own += place >= from ? measure(place) : 0; };
    if (listed >= 0) {
      EachListed(listed, add);
      return OfBlock(own, Add());
    }
    Each(add);
    return SumOfTeam(own);
  }

  __device__ int CountThreads(bool yes) {
#if ANYOP_PTX
    return __syncthreads_count(yes);
#else
    return static_cast<int>(OfBlock(yes, Add()));
#endif
  }
  // A key that so many threads reach with theirs, nearly the greatest; 0 where fewer have one.
  __device__ unsigned FindKey(unsigned own, int threads) {
    unsigned key = 0;
#pragma unroll 1
    for (int bit = 31; bit > 11; --bit) {
      const unsigned more = key | 1u << bit;
      if (CountThreads(own >= more) >= threads) key = more;
    }
    return key;
  }

  __device__ void List(Place place) {
    const int at = atomicAdd(&shared->listed, 1);
    if (at < kListed) shared->list[at] = place;
  }
  __device__ void Push(float x, int64_t v) {
    if (v < end) List(PlaceOf(x, static_cast<uint32_t>(v)));
  }

  // The greatest of all that threads saw. What blocks listed is in each one's list behind it, if
  // that holds it.
  __device__ Place Gather(Place own) {
    __syncthreads();
    const int mine = shared->listed;
    if (parts == 1) {
      listed = mine <= kListed ? mine : -1;
      return OfBlock(own, Greater());
    }
    for (int i = threadIdx.x; mine <= kListed && i < mine; i += kTeamThreads)
      lists[part * kListed + i] = shared->list[i];
    if (threadIdx.x == 0) memory->listed[part] = mine;
    const Place most = MostOfTeam(own);
    int all = 0;
    for (int p = 0; p < parts; ++p) {
      const int n = static_cast<volatile int*>(memory->listed)[p];
      const bool fits = all >= 0 && n <= kListed - all;
      const volatile Place* const list = lists + p * kListed;
      for (int i = threadIdx.x; fits && i < n; i += kTeamThreads) shared->list[all + i] = list[i];
      all = fits ? all + n : -1;
    }
    listed = all;
    __syncthreads();
    return most;
  }

  // shared->sums of all blocks.
  __device__ void JoinSums() {
    __syncthreads();
    if (parts == 1) return;
    Sum* const turn = memory->sums[turns % 3];
    Sum* const next = memory->sums[(turns + 1) % 3];
    if (turns == 0) {
      for (int i = threadIdx.x; part == 0 && i < kDigits; i += kTeamThreads) turn[i] = 0;
      Meet();
    }
    for (int i = threadIdx.x; i < kDigits; i += kTeamThreads) {
      if (shared->sums[i]) atomicAdd(turn + i, shared->sums[i]);
      if (part == 0) next[i] = 0;
    }
    Meet();
    for (int i = threadIdx.x; i < kDigits; i += kTeamThreads)
      shared->sums[i] = static_cast<volatile Sum*>(turn)[i];
    ++turns;
    __syncthreads();
  }

  // found[0] the greatest digit down to which sums reach wanted, [1] their sum before it, [2] its
  // own, [3] the sum of all.
  __device__ void FindDigit(Sum wanted) {
    constexpr int kPer = kDigits / kTeamThreads;
    const int top = kDigits - 1 - kPer * static_cast<int>(threadIdx.x), lane = threadIdx.x % 32;
    Sum own = 0;
    for (int i = 0; i < kPer; ++i) own += shared->sums[top - i];
    Sum before = own;
    for (int step = 1; step < 32; step *= 2) {
      const Sum other = __shfl_up_sync(~0u, before, step);
      if (lane >= step) before += other;
    }
    Sum* const turn = shared->words[words++ % 2];
    if (lane == 31) turn[threadIdx.x / 32] = before;
    __syncthreads();
    Sum all = lane < kTeamThreads / 32 ? turn[lane] : 0;  // of warps up to the lane's
    for (int step = 1; step < 32; step *= 2) {
      const Sum other = __shfl_up_sync(~0u, all, step);
      if (lane >= step) all += other;
    }
    const int warp = static_cast<int>(threadIdx.x) / 32;
    const Sum warps = __shfl_sync(~0u, all, warp ? warp - 1 : 0);
    all = __shfl_sync(~0u, all, 31);
    before = before - own + (warp ? warps : 0);
    if (before < wanted && wanted <= before + own) {
      int at = top;
      for (; before + shared->sums[at] < wanted; --at) before += shared->sums[at];
      shared->found[0] = static_cast<Sum>(at);
      shared->found[1] = before;
      shared->found[2] = shared->sums[at];
    }
    if (threadIdx.x == 0) shared->found[3] = all;
    __syncthreads();
  }

  // The place of the last element that is needed, from the greatest on, until measures reach
  // wanted; or one before which there is none but it. What is behind `from` is left out. Where all
  // do not reach it: from.
  template <typename Measure>
  __device__ Place FindLast(Place from, Sum wanted, const Measure& measure) {
    if (listed >= 0) return FindListed(from, wanted, measure);
    Place prefix = 0, mask = 0;
    for (int level = 0; level < sampling::kLevels; ++level) {
      for (int i = threadIdx.x; i < kDigits; i += kTeamThreads) shared->sums[i] = 0;
      __syncthreads();
      Each([&](Place place) {
        if (place < from || (place & mask) != prefix) return;
        if (const Sum own = measure(place)) atomicAdd(&shared->sums[DigitOf(place, level)], own);
      });
      JoinSums();
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

  // The same for masses of a sum that is a share of all from `from` on. A list may end before it.
  template <typename Mass>
  __device__ Place FindShare(Place from, Sum wanted, const Mass& mass) {
    if (!from && listed >= 0 && SumFrom(0, mass) < wanted) listed = -1;
    return FindLast(from, wanted, mass);
  }

  // The last listed place down to `from`: what is not listed may lie between them.
  __device__ Place LastListed(Place from) {
    Sum own = ~Sum{0};
    EachListed(listed, [&](Place place) { own = place >= from && place < own ? place : own; });
    return OfBlock(own, [](Sum a, Sum b) { return a < b ? a : b; });
  }

  // The same of what is listed, by each block for itself. Digits begin where places differ; the
  // last few are compared with one another.
  template <typename Measure>
  __device__ Place FindListed(Place from, Sum wanted, const Measure& measure) {
    const Place any = listed ? shared->list[0] : 0;
    Sum differ = 0;
    EachListed(listed, [&](Place place) { differ |= place ^ any; });
    differ = OfBlock(differ, [](Sum a, Sum b) { return a | b; });
    int shift = 0;
    while (differ >> shift >= kDigits) ++shift;
    Place mask = ~((Place{kDigits} << shift) - 1), prefix = any & mask;
    while (true) {
      for (int i = threadIdx.x; i < kDigits; i += kTeamThreads) shared->sums[i] = 0;
      if (threadIdx.x == 0) shared->count = 0;
      __syncthreads();
      const auto each = [&](const auto& body) {
        EachListed(listed, [&](Place place) {
          if (place < from || (place & mask) != prefix) return;
          if (const Sum own = measure(place)) body(place, own);
        });
      };
      each([&](Place place, Sum own) {
        atomicAdd(&shared->sums[place >> shift & (kDigits - 1)], own);
      });
      __syncthreads();
      FindDigit(wanted);
      if (shared->found[3] < wanted) return from;
      wanted -= shared->found[1];
      prefix |= static_cast<Place>(shared->found[0]) << shift;
      mask |= static_cast<Place>(kDigits - 1) << shift;
      if (shared->found[2] == wanted || shift == 0) return LastListed(prefix);
      each([&](Place place, Sum) {
        const int at = atomicAdd(&shared->count, 1);
        if (at < 32) shared->near[at] = place;
      });
      __syncthreads();
      if (shared->count <= 32) break;
      shift = shift < 11 ? 0 : shift - 11;
      __syncthreads();
    }
    if (threadIdx.x < 32) {
      const int lane = threadIdx.x;
      const Place place = lane < shared->count ? shared->near[lane] : 0;
      const Sum own = place ? measure(place) : 0;
      Sum reached = 0;
      for (int other = 0; other < 32; ++other) {
        const Place its = __shfl_sync(~0u, place, other);
        const Sum more = __shfl_sync(~0u, own, other);
        if (its >= place) reached += more;
      }
      if (place && reached >= wanted && reached - own < wanted) shared->found[0] = place;
    }
    __syncthreads();
    return shared->found[0];
  }
};

// A team's kernel. Few rows get teams of several blocks, which run at once or not at all; then, and
// of many rows, each is a block's.
template <auto kKernel, typename Problem>
int32_t RunTeams(AnyopCall* call, int64_t B, int64_t V, Problem problem) {
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  if (int32_t status = AllowShared<kKernel>(call, sizeof(TeamShared))) return status;
  const bool clusters = ANYOP_PTX && limits.major >= 9;
  const auto fit = static_cast<int>(limits.multiprocessors / B), need = static_cast<int>(V / 4096);
  const int most = clusters && kMostParts > kClusterParts ? kClusterParts : kMostParts;
  problem.parts = fit < need ? fit : need;
  if (problem.parts > most) problem.parts = most;
  if (problem.parts > 1) {
    const int64_t blocks = B * problem.parts, bytes = B * int64_t{sizeof(TeamMemory)};
    auto* memory = static_cast<char*>(
        call->workspace(call, bytes + blocks * kListed * int64_t{sizeof(Place)}));
    if (!memory) return call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
    problem.memory = reinterpret_cast<TeamMemory*>(memory);
    problem.lists = reinterpret_cast<Place*>(memory + bytes);
    Launch launch{dim3(static_cast<unsigned>(blocks)), dim3(kTeamThreads), sizeof(TeamShared)};
    launch.cooperative = !clusters;
    launch.cluster = clusters ? problem.parts : 1;
    if (!clusters) {
      if (int32_t status = Check(call, cudaMemsetAsync(memory, 0, bytes, StreamOf(call)),
                                 "clearing its workspace"))
        return status;
    }
    const cudaError_t started = launch.Start(call, kKernel, problem);
    if (!clusters && started != cudaErrorCooperativeLaunchTooLarge &&
        started != cudaErrorNotSupported)
      return Check(call, started, "starting its kernel");
    if (started == cudaSuccess) return kAnyopOk;
    cudaGetLastError();  // others have a share of the device
  }
  problem.parts = 1;
  const int64_t blocks = B < 65535 ? B : 65535;
  const Launch launch{dim3(static_cast<unsigned>(blocks)), dim3(kTeamThreads), sizeof(TeamShared)};
  return launch.Run(call, kKernel, problem);
}

}  // namespace
}  // namespace anyop::cuda
