// SPDX-License-Identifier: Apache-2.0
// What the blocks of a team list of their row, in shared memory: each has the lists of all, and
// finds by itself the last element that a filter keeps.
#pragma once

#include "team_cuda.h"

namespace anyop::cuda {
namespace {

struct TeamList : Team {
  using Team::Team;

  int listed = -1;    // so many of the row are in the list, and no others matter
  unsigned most = 0;  // of Gather

  // body(place) of what is listed.
  template <typename Body>
  __device__ void EachListed(int listed, const Body& body) const {
#pragma unroll 1
    for (int i = threadIdx.x; i < listed; i += kTeamThreads) body(shared->list[i]);
  }
  template <typename Measure>
  __device__ Sum SumListed(Place from, const Measure& measure) {
    Sum own = 0;
    EachListed(listed, [&](Place place) { own += place >= from ? measure(place) : 0; });
    return OfBlock(own, Add());
  }

  // A key from low to top that at least `least` keys reach, and if there is one at most `most`;
  // low where there are fewer. each(body): body(key) of a thread's keys. Keys are counted in bins,
  // and those of one bin again; a lane of each warp has some of them.
  template <typename Each>
  __device__ unsigned FindBound(unsigned low, unsigned top, int least, int most, int* reached,
                                const Each& each) {
    constexpr int kOfLane = kCounts / 32;
    const int lane = threadIdx.x % 32;
    int above = 0;
#pragma unroll 1
    while (true) {
      const int bits = 32 - __clz(static_cast<int>(top - low)), shift = bits > 8 ? bits - 8 : 0;
      if (threadIdx.x < kCounts) shared->counts[threadIdx.x] = 0;
      __syncthreads();
      each([&](unsigned key) {
        const unsigned bin = (key - low) >> shift;
        if (key >= low && key <= top)
          atomicAdd(&shared->counts[bin % kOfLane * 32 + bin / kOfLane], 1u);
      });
      __syncthreads();
      int n[kOfLane], own = 0;
#pragma unroll
      for (int i = 0; i < kOfLane; ++i)
        own += n[i] = static_cast<int>(shared->counts[i * 32 + lane]);
      int from = own;  // from this lane's bins on
#pragma unroll
      for (int step = 1; step < 32; step *= 2) {
        const int other = __shfl_down_sync(~0u, from, step);
        if (lane + step < 32) from += other;
      }
      int upto = above + from - own, of_bin = 0, bin = 0;
      const unsigned found = __ballot_sync(~0u, upto < least && upto + own >= least);
      if (!found) {
        *reached = above + __shfl_sync(~0u, from, 0);
        return low;
      }
#pragma unroll
      for (int i = kOfLane - 1; i >= 0; --i)
        if (upto < least) upto += of_bin = n[i], bin = lane * kOfLane + i;
      const int its = __ffs(static_cast<int>(found)) - 1;
      low += static_cast<unsigned>(__shfl_sync(~0u, bin, its)) << shift;
      *reached = __shfl_sync(~0u, upto, its);
      if (*reached <= most || shift == 0) return low;
      above = *reached - __shfl_sync(~0u, of_bin, its);
      const unsigned last = low + ((1u << shift) - 1);
      top = last < top ? last : top;
      __syncthreads();
    }
  }
  // A key that at least so many threads reach with theirs, and few more; 0 where fewer have one.
  __device__ unsigned FindKey(unsigned own, int threads) {
    const Sum ends = OfBlock(own ? Sum{own} << 32 | ~own : 0, GreaterHalves());
    int reached;
    const unsigned key = FindBound(~static_cast<unsigned>(ends), static_cast<unsigned>(ends >> 32),
                                   threads, threads + threads / 4, &reached, [&](const auto& body) {
                                     if (own) body(own);
                                   });
    return reached >= threads ? key : 0;
  }
  // Puts the first k of what is listed to shared->kept, and some more where keys are near; how
  // many, up to a thread each. least: a key that at least k reach.
  template <typename Mass>
  __device__ int KeepFew(unsigned least, int k, const Mass& mass) {
    int reached;
    Place from = Place{FindBound(least, most, k, k + kTeamThreads / 4, &reached,
                                 [&](const auto& body) {
                                   EachListed(listed, [&](Place place) {
                                     body(static_cast<unsigned>(place >> 32));
                                   });
                                 })}
                 << 32;
    if (reached > kTeamThreads) {
      from = FindListed(static_cast<Sum>(k), [](Place) { return Sum{1}; });
      __syncthreads();
      if (threadIdx.x == 0) shared->count = 0;
      __syncthreads();
    }
    EachListed(listed, [&](Place place) {
      if (place >= from) shared->kept[atomicAdd(&shared->count, 1)] = {place, mass(place)};
    });
    __syncthreads();
    return shared->count;
  }
  // One of n kept places of a thread, the first of some lanes, and what comes before it.
  struct Ranked {
    Place place;
    Sum mass, before;
    int rank;  // n: of no place
  };
  __device__ Ranked RankKept(int n) const {
    const int bits = __clz(n - 1) - 23, shift = bits < 5 ? bits : 5, lanes = 1 << shift;
    static_assert(kTeamThreads == 1 << (32 - 23), "lanes of all places are no more threads");
    const int i = static_cast<int>(threadIdx.x) >> shift, lane = threadIdx.x & (lanes - 1);
    const Kept own = i < n ? shared->kept[i] : Kept{~Place{0}, 0};
    Ranked ranked = {own.place, own.mass, 0, 0};
#pragma unroll 4
    for (int j = lane; j < n; j += lanes) {
      const Kept its = shared->kept[j];
      if (its.place > own.place) ranked.before += its.mass, ++ranked.rank;
    }
#pragma unroll 1
    for (int step = lanes / 2; step; step /= 2) {
      ranked.before += __shfl_xor_sync(~0u, ranked.before, step);
      ranked.rank += __shfl_xor_sync(~0u, ranked.rank, step);
    }
    if (i >= n || lane) ranked.rank = n;
    return ranked;
  }

  // The place of the k-th of what is listed.
  __device__ Place FindFirst(unsigned least, int k) {
    const Ranked own = RankKept(KeepFew(least, k, [](Place) { return Sum{0}; }));
    if (own.rank == k - 1) shared->found[0] = own.place;
    __syncthreads();
    return shared->found[0];
  }

  __device__ void Push(int at, float x, int v) {
    if (at < kListed) shared->list[at] = PlaceOf(x, static_cast<uint32_t>(v));
  }

  // What blocks listed is in each one's list behind its own, if that holds it; most: the greatest
  // of their keys. False: some have found that the row is bad.
  __device__ bool Gather(bool bad, unsigned key = 0) {
    constexpr unsigned kBad = 1u << 24;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    key = MostOfWarp(key);
    if (lane == 0) atomicMax(&shared->most, key);
    if (bad) shared->bad = 1;
    __syncthreads();
    const int mine = shared->listed;
    const unsigned word = shared->bad ? kBad : mine <= kListed ? mine : kListed + 1;
    listed = word <= kListed ? mine : -1;
    most = shared->most;
    if (parts == 1) return word != kBad;
#if __CUDA_ARCH__ < 900
#pragma unroll 1
    for (int i = threadIdx.x; i < listed; i += kTeamThreads) ListFor(part)[i] = shared->list[i];
#endif
    Tell(Sum{most} << 32 | word);
    Meet();
    // Each warp takes what another block has listed.
    constexpr int kWarps = kTeamThreads / 32;
    const int of = warp % parts, step = 32 * ((kWarps - 1 - of) / parts + 1);
    const Sum told = lane < parts ? Told(lane) : 0;
    const unsigned its = static_cast<unsigned>(told);
    const unsigned all = SumOfWarp(its);
    const int to = mine + static_cast<int>(SumOfWarp(lane < of && lane != part ? its : 0));
    const int n = __shfl_sync(~0u, static_cast<int>(its), of);
    most = MostOfWarp(static_cast<unsigned>(told >> 32));
    listed = all <= kListed ? static_cast<int>(all) : -1;
#pragma unroll 1
    for (int i = warp / parts * 32 + lane; listed >= 0 && of != part && i < n; i += step)
      shared->list[to + i] = ListedBy(of, i);
    __syncthreads();
    return all < kBad;
  }
  // The greatest element, not its token; ~0: the row is bad.
  __device__ Place MostOf(bool good) const { return good ? Place{most} << 32 : ~Place{0}; }
  __device__ Place ListedBy(int of, int i) const {
#if __CUDA_ARCH__ >= 900
    return SeeOther(shared->list + i, of);
#else
    return static_cast<const volatile Place*>(ListFor(of))[i];
#endif
  }
  // What shared->sums of the digits above a thread's, of its own, and of all add up to.
  struct Digits {
    Sum before, own, all;
  };
  static constexpr int kPer = kDigits / kTeamThreads;  // of a thread, from TopDigit down
  __device__ static int TopDigit() { return kDigits - 1 - kPer * static_cast<int>(threadIdx.x); }
  __device__ Digits SumDigits() {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int top = TopDigit();
#if ANYOP_PTX
    asm volatile("" : "+r"(top));  // else addresses are kept in registers from row to row
#endif
    Sum own = 0;
    for (int i = 0; i < kPer; ++i) own += shared->sums[top - i];
    Sum before = own;
#pragma unroll 1
    for (int step = 1; step < 32; step *= 2) {
      const Sum other = __shfl_up_sync(~0u, before, step);
      if (lane >= step) before += other;
    }
    Sum* const turn = shared->words[words++ % 2];
    if (lane == 31) turn[warp] = before;
    __syncthreads();
    const Sum of_lane = lane < kTeamThreads / 32 ? turn[lane] : 0;
    const Sum warps = Add::OfWarp(lane < warp ? of_lane : 0);
    return {before - own + warps, own, Add::OfWarp(of_lane)};
  }
  // found[0] the greatest digit down to which sums reach wanted, [1] their sum before it, [2] its
  // own. By all threads; behind a barrier.
  __device__ void FindDigit(const Digits& digits, Sum wanted, Sum* found) const {
    Sum before = digits.before;
    if (!(before < wanted && wanted <= before + digits.own)) return;
    int at = TopDigit();
    for (; before + shared->sums[at] < wanted; --at) before += shared->sums[at];
    found[0] = static_cast<Sum>(at);
    found[1] = before;
    found[2] = shared->sums[at];
  }

  // The last listed place down to `from`: what is not listed may lie between them.
  __device__ Place LastListed(Place from) {
    Sum own = 0;
    EachListed(listed, [&](Place place) { own = place >= from && ~place > own ? ~place : own; });
    return ~OfBlock(own, Greater());
  }

  // Of what is listed: the place of the last element that is needed, from the greatest on, until
  // measures reach wanted. By each block for itself. Digits begin where places differ; the last few
  // are compared with one another.
  template <typename Measure>
  __device__ Place FindListed(Sum wanted, const Measure& measure) {
    const Place any = listed ? shared->list[0] : 0;
    Sum differ = 0;
    EachListed(listed, [&](Place place) { differ |= place ^ any; });
    differ = OfBlock(differ, Or());
    const unsigned high = static_cast<unsigned>(differ >> 32);
    const int bits = high ? 64 - __clz(static_cast<int>(high))
                          : 32 - __clz(static_cast<int>(static_cast<unsigned>(differ)));
    int shift = bits > 11 ? bits - 11 : 0;
    Place mask = ~((Place{kDigits} << shift) - 1), prefix = any & mask;
#pragma unroll 1
    while (true) {
#pragma unroll 1
      for (int i = threadIdx.x; i < kDigits; i += kTeamThreads) shared->sums[i] = 0;
      if (threadIdx.x == 0) shared->count = 0;
      __syncthreads();
      const auto each = [&](const auto& body) {
        EachListed(listed, [&](Place place) {
          if ((place & mask) != prefix) return;
          if (const Sum own = measure(place)) body(place, own);
        });
      };
      each([&](Place place, Sum own) {
        atomicAdd(&shared->sums[place >> shift & (kDigits - 1)], own);
      });
      __syncthreads();
      FindDigit(SumDigits(), wanted, shared->found);
      __syncthreads();
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
#pragma unroll 1
      for (int other = 0; other < shared->count; ++other) {
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

}  // namespace
}  // namespace anyop::cuda
