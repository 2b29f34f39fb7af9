// SPDX-License-Identifier: Apache-2.0
// Teams of the sampling operators on CUDA: the blocks that share a row, a cluster on Hopper, and
// how they and their threads count and sum together. All sums are of integers, so that a token does
// not depend on the size of teams.
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
constexpr int kTold = 8;      // words that are told in turn
constexpr int kCounts = 256;  // bins of a search for a key
#if ANYOP_PTX || defined(ANYOP_WAIT_FOR_GRID)
constexpr int kMostParts = 16;
#else
constexpr int kMostParts = 1;  // blocks have no way to wait for one another
#endif
constexpr int kClusterParts = 8;
// Blocks of a multiprocessor. Before Hopper its shared memory does not hold two.
#if __CUDA_ARCH__ >= 900
constexpr int kTeamBlocks = 2;
#else
constexpr int kTeamBlocks = 1;
#endif

// What the blocks of a row show one another, in global memory. Sums take three turns: those of the
// next one are cleared while this one's are added.
struct TeamMemory {
  Sum sums[3][kDigits];
  Sum told[kTold][kMostParts];  // on Hopper in TeamShared
  unsigned here, unused[31];    // blocks that have come to a meeting; 0 at first
};
struct Kept {
  Place place;
  Sum mass;
};
struct alignas(16) TeamShared {
  union {
    Sum sums[kDigits];
    Kept kept[kTeamThreads];
  };
  Place list[kListed];
  Place near[32];
  Sum words[2][32];
  Sum told[kTold][kMostParts];
  Sum found[8];
  alignas(16) unsigned bins[kDigits];
  unsigned counts[kCounts];
  int listed, count, bad;
  unsigned most;   // the key of the greatest element
  unsigned limit;  // of a race, as a key
  sampling::Request request;
  TeamMemory* memory;                      // of this team
  Place* lists;                            // of its blocks
  alignas(16) unsigned words_of_draw[24];  // DrawnWords
};

// The logarithm to base 2, off by up to 2^-21 or that share of it; by no more than that of what is
// below 2^-126.
__device__ inline float Log2(float v) {
#if ANYOP_PTX
  float log;
  asm("lg2.approx.f32 %0, %1;" : "=f"(log) : "f"(v));
  return log;
#else
  return log2f(v);
#endif
}

// Of all lanes of a warp.
__device__ inline unsigned SumOfWarp(unsigned v) {
#if ANYOP_PTX
  asm volatile("redux.sync.add.u32 %0, %0, 0xffffffff;" : "+r"(v));
#else
  for (int step = 16; step; step /= 2) v += __shfl_xor_sync(~0u, v, step);
#endif
  return v;
}
__device__ inline unsigned MostOfWarp(unsigned v) {
#if ANYOP_PTX
  asm volatile("redux.sync.max.u32 %0, %0, 0xffffffff;" : "+r"(v));
#else
  for (int step = 16; step; step /= 2) {
    const unsigned other = __shfl_xor_sync(~0u, v, step);
    v = other > v ? other : v;
  }
#endif
  return v;
}

struct Greater {
  __device__ Sum operator()(Sum a, Sum b) const { return a > b ? a : b; }
  __device__ static Sum OfWarp(Sum v) {
    const unsigned high = static_cast<unsigned>(v >> 32), most = MostOfWarp(high);
    return Sum{most} << 32 | MostOfWarp(high == most ? static_cast<unsigned>(v) : 0);
  }
};
struct Add {
  __device__ Sum operator()(Sum a, Sum b) const { return a + b; }
  __device__ static Sum OfWarp(Sum v) {
    constexpr unsigned kLow = (1u << 27) - 1;  // 32 of these have a sum of 32 bits
    return SumOfWarp(static_cast<unsigned>(v) & kLow) +
           (Sum{SumOfWarp(static_cast<unsigned>(v >> 27) & kLow)} << 27) +
           (Sum{SumOfWarp(static_cast<unsigned>(v >> 54))} << 54);
  }
};
// Of each half for itself.
struct GreaterHalves {
  __device__ static Sum OfWarp(Sum v) {
    return Sum{MostOfWarp(static_cast<unsigned>(v >> 32))} << 32 |
           MostOfWarp(static_cast<unsigned>(v));
  }
};
struct Or {
  __device__ static Sum OfWarp(Sum v) {
    for (int step = 16; step; step /= 2) v |= __shfl_xor_sync(~0u, v, step);
    return v;
  }
};
struct Team {
  TeamShared* shared;
  int part, parts, share;  // of its elements each, the last one fewer
  unsigned turns = 0, words = 0, told = 0, meetings = 0;

  template <typename Problem>
  __device__ explicit Team(const Problem& p)
      : shared(reinterpret_cast<TeamShared*>(DynamicShared())),
        part(static_cast<int>(blockIdx.x) % p.parts),
        parts(p.parts),
        share(p.share) {
#if __CUDA_ARCH__ >= 900
    if (parts > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#else
    if (threadIdx.x == 0) {  // not in registers, where many copies would be kept
      shared->memory = p.memory + team();
      shared->lists = p.lists + int64_t{team()} * parts * kListed;
    }
#endif
  }

  __device__ int team() const { return static_cast<int>(blockIdx.x) / parts; }
  __device__ TeamMemory* memory() const { return shared->memory; }
  __device__ Place* ListFor(int of) const { return shared->lists + int64_t{of} * kListed; }

  // Waits until all blocks of the row are here, and sees what they have written. All run at once.
  __device__ void Meet() {
    if (parts == 1) return __syncthreads();
#if __CUDA_ARCH__ >= 900
    asm volatile(
        "barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::
            : "memory");
#elif ANYOP_PTX
    __syncthreads();
    if (threadIdx.x == 0) {
      const unsigned all = ++meetings * static_cast<unsigned>(parts);
      unsigned here;
      asm volatile(
          "fence.acq_rel.gpu;\n\tred.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(&memory()->here)
          : "memory");
      do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(here) : "l"(&memory()->here));
      } while (here < all);
      asm volatile("fence.acq_rel.gpu;" ::: "memory");
    }
    __syncthreads();
#elif defined(ANYOP_WAIT_FOR_GRID)
    ANYOP_WAIT_FOR_GRID();
#endif
  }

  // Join::OfWarp of all threads of the block, for all of them.
  template <typename Join>
  __device__ Sum OfBlock(Sum own, const Join&) {
    Sum* const turn = shared->words[words++ % 2];
    const int lane = threadIdx.x % 32;
    own = Join::OfWarp(own);
    if (lane == 0) turn[threadIdx.x / 32] = own;
    __syncthreads();
    return Join::OfWarp(lane < kTeamThreads / 32 ? turn[lane] : 0);
  }
  // Tells all blocks of the team a word, alike in all threads; Told is theirs behind Meet: the last
  // one, or one before it. Up to kTold / 2 may be told between two meetings.
  __device__ void Tell(Sum word) {
    if (told == 0) WaitForStart();
    const int turn = told++ % kTold;
#if __CUDA_ARCH__ >= 900
    if (static_cast<int>(threadIdx.x) < parts)
      asm volatile("st.shared::cluster.u64 [%0], %1;" ::"r"(
                       SharedOf(&shared->told[turn][part], static_cast<int>(threadIdx.x))),
                   "l"(word)
                   : "memory");
#else
    if (threadIdx.x == 0) static_cast<volatile Sum*>(memory()->told[turn])[part] = word;
#endif
  }
  // Until all blocks of the cluster have begun: before the first word that is told.
  __device__ void WaitForStart() const {
#if __CUDA_ARCH__ >= 900
    if (parts > 1) asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
  }
  __device__ Sum Told(int of, int before = 0) const {
#if __CUDA_ARCH__ >= 900
    return shared->told[(told - 1 - before) % kTold][of];
#else
    return static_cast<volatile Sum*>(memory()->told[(told - 1 - before) % kTold])[of];
#endif
  }
#if __CUDA_ARCH__ >= 900
  // The address of what lies there in the memory of another block of the cluster.
  __device__ static unsigned SharedOf(const void* own, int part) {
    unsigned at;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(SharedAddress(own)), "r"(part));
    return at;
  }
  __device__ static Sum SeeOther(const void* own, int part) {
    Sum its;
    asm volatile("ld.shared::cluster.u64 %0, [%1];" : "=l"(its) : "r"(SharedOf(own, part)));
    return its;
  }
  __device__ static uint4 SeeFourOfOther(const void* own, int part) {
    uint4 its;
    asm volatile("ld.shared::cluster.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(its.x), "=r"(its.y), "=r"(its.z), "=r"(its.w)
                 : "r"(SharedOf(own, part)));
    return its;
  }
#endif
  // Of all blocks.
  template <typename Join>
  __device__ Sum OfTeam(Sum own, const Join& join) {
    own = OfBlock(own, join);
    if (parts > 1) {
      Tell(own);
      Meet();
      own = JoinTold(join);
    }
    return own;
  }
  // A word of all blocks, told before the last ones.
  template <typename Join>
  __device__ Sum JoinTold(const Join& join, int before = 0) const {
    Sum all = Told(0, before);
#pragma unroll 1
    for (int p = 1; p < parts; ++p) all = join(all, Told(p, before));
    return all;
  }
  __device__ Sum MostOfTeam(Sum own) { return OfTeam(own, Greater()); }
  __device__ Sum SumOfTeam(Sum own) { return OfTeam(own, Add()); }

  // Behind the last row: no block of a cluster ends before the others have read what it showed.
  __device__ void Leave() {
#if __CUDA_ARCH__ >= 900
    if (told == 0) WaitForStart();
    if (parts > 1)
      asm volatile("barrier.cluster.arrive.relaxed.aligned;\n\tbarrier.cluster.wait.aligned;" ::
                       : "memory");
#endif
  }

  // shared->sums of all blocks, which have told one another something before.
  __device__ void JoinSums() {
    __syncthreads();
    if (parts == 1) return;
#if __CUDA_ARCH__ >= 900
    constexpr int kPer = kDigits / kTeamThreads;
    Sum sums[kPer] = {};
    Meet();
#pragma unroll 1
    for (int p = 0; p < parts; ++p) {
#pragma unroll
      for (int i = 0; i < kPer; ++i)
        sums[i] += SeeOther(shared->sums + threadIdx.x + i * kTeamThreads, p);
    }
    Meet();
#pragma unroll
    for (int i = 0; i < kPer; ++i) shared->sums[threadIdx.x + i * kTeamThreads] = sums[i];
#else
    Sum* const turn = memory()->sums[turns % 3];
    Sum* const next = memory()->sums[(turns + 1) % 3];
    if (turns == 0) {
#pragma unroll 1
      for (int i = threadIdx.x; part == 0 && i < kDigits; i += kTeamThreads) turn[i] = 0;
      Meet();
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < kDigits; i += kTeamThreads) {
      if (shared->sums[i]) atomicAdd(turn + i, shared->sums[i]);
      if (part == 0) next[i] = 0;
    }
    Meet();
#pragma unroll 1
    for (int i = threadIdx.x; i < kDigits; i += kTeamThreads)
      shared->sums[i] = static_cast<volatile Sum*>(turn)[i];
    ++turns;
#endif
    __syncthreads();
  }
  // shared->bins of all blocks, which have met since they counted: a thread has four of them, from
  // the first one on.
  struct Bins4 {
    unsigned at[4];
  };
  __device__ Bins4 JoinBins() {
    const unsigned* const bins = shared->bins + 4 * threadIdx.x;
    Bins4 all = {{bins[0], bins[1], bins[2], bins[3]}};
#if __CUDA_ARCH__ >= 900
#pragma unroll
    for (int p = 0; p < kClusterParts; ++p) {
      if (p == part || p >= parts) continue;
      const uint4 its = SeeFourOfOther(bins, p);
      all.at[0] += its.x, all.at[1] += its.y, all.at[2] += its.z, all.at[3] += its.w;
    }
#else
    if (parts > 1) {
      Sum* const sums = shared->sums + 4 * threadIdx.x;
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i] = all.at[i];
      JoinSums();
#pragma unroll
      for (int i = 0; i < 4; ++i) all.at[i] = static_cast<unsigned>(sums[i]);
    }
#endif
    return all;
  }
};
static_assert(kDigits == 4 * kTeamThreads, "a thread has four bins");

}  // namespace
}  // namespace anyop::cuda
