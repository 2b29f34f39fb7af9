// SPDX-License-Identifier: Apache-2.0
// What the blocks of a team list of their row, in shared memory: each has the lists of all, and
// finds by itself the last element that a filter keeps.
#pragma once

#include "team_cuda.h"

namespace anyop::cuda {
namespace {

struct TeamList : Team {
  using Team::Team;

  int listed = -1;  // so many of the row are in the list, and no others matter

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

  // A bound that `least` to `most` of what is counted reach; as few more than least as ties allow,
  // where there is none. low: one that at least so many reach; high: one that fewer do.
  template <typename Count>
  __device__ Sum Bisect(Sum low, Sum high, int least, int most, const Count& count) {
#pragma unroll 1
    while (high - low > 1) {
      const Sum middle = low + (high - low) / 2;
      const int n = count(middle);
      if (n < least) {
        high = middle;
      } else {
        low = middle;
        if (n <= most) break;
      }
    }
    return low;
  }
  // The same by one warp, of up to 1,023 keys that its lanes hold; three bounds are tried at a
  // time.
  template <int kHeld>
  __device__ static unsigned BisectHeld(const unsigned (&keys)[kHeld], unsigned low, unsigned high,
                                        int least, int most, int* reached) {
    *reached = 0;
    unsigned between;
#pragma unroll 1
    do {
      between = high - low;
      const unsigned tries[] = {low + between / 4, low + between / 2,
                                low + between / 2 + between / 4};
      unsigned own = 0;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
#pragma unroll
        for (int j = 0; j < 3; ++j) own += keys[i] >= tries[j] ? 1u << 10 * j : 0;
      }
      own = SumOfWarp(own);
#pragma unroll
      for (int j = 0; j < 3; ++j) {  // from the least on
        const int n = static_cast<int>(own >> 10 * j & 1023);
        if (n >= least) {
          low = tries[j];
          *reached = n;
        } else if (tries[j] < high) {
          high = tries[j];
        }
      }
    } while (!(*reached && *reached <= most) && between > 1);
    return low;
  }
  // A key that at least so many threads reach with theirs, and few more; 0 where fewer have one.
  __device__ unsigned FindKey(unsigned own, int threads) {
    shared->keys[threadIdx.x] = own;
    __syncthreads();
    if (threadIdx.x < 32) {
      unsigned keys[kTeamThreads / 32], most = 0, none = 0, some = 0;
#pragma unroll
      for (int i = 0; i < kTeamThreads / 32; ++i) {
        keys[i] = shared->keys[threadIdx.x + 32 * i];
        most = keys[i] > most ? keys[i] : most;
        none = keys[i] && ~keys[i] > none ? ~keys[i] : none;
        some += keys[i] > 0;
      }
      const bool enough = static_cast<int>(SumOfWarp(some)) >= threads;
      int reached;
      const unsigned key =
          BisectHeld(keys, enough ? ~MostOfWarp(none) : 0, enough ? MostOfWarp(most) + 1 : 1,
                     threads, threads + (threads < 128 ? threads / 4 : 0), &reached);
      if (threadIdx.x == 0) shared->key = key;
    }
    __syncthreads();
    return shared->key;
  }
  // Of what is listed, more than k: what exactly k reach, and the greatest, not its token. least: a
  // key that at least k reach.
  __device__ Place FindListedFirst(unsigned least, int k, Place* most) {
    if (listed <= kHeldByWarp) {
      if (threadIdx.x < 32) {
        unsigned keys[kHeldByWarp / 32], top = 0;
#pragma unroll
        for (int i = 0; i < kHeldByWarp / 32; ++i) {
          const int at = static_cast<int>(threadIdx.x) + 32 * i;
          keys[i] = at < listed ? static_cast<unsigned>(shared->list[at] >> 32) : 0;
          top = keys[i] > top ? keys[i] : top;
        }
        top = MostOfWarp(top);
        int reached;
        const unsigned key = BisectHeld(keys, least, top + 1, k, k, &reached);
        if (threadIdx.x == 0) {
          shared->found[0] = reached == k ? Place{key} << 32 : 0;
          shared->found[1] = Place{top} << 32;
        }
      }
      __syncthreads();
      *most = shared->found[1];
      if (shared->found[0]) return shared->found[0];
    }
    *most = MostListed();
    return Bisect(Place{least} << 32, *most + 1, k, k, [&](Place place) {
      int n = 0;
#pragma unroll 1
      for (int i = threadIdx.x, first = 0; first < listed; i += kTeamThreads, first += kTeamThreads)
        n += CountThreads(i < listed && shared->list[i] >= place);
      return n;
    });
  }

  __device__ void Push(int at, float x, int v) {
    if (at < kListed) shared->list[at] = PlaceOf(x, static_cast<uint32_t>(v));
  }

  // What blocks listed is in each one's list behind its own, if that holds it. False: some have
  // found that the row is bad.
  __device__ bool Gather(bool bad) {
    constexpr unsigned kBad = 1u << 24;
    if (bad) shared->bad = 1;
    __syncthreads();
    const int mine = shared->listed;
    const unsigned word = shared->bad ? kBad : mine <= kListed ? mine : kListed + 1;
    listed = word <= kListed ? mine : -1;
    if (parts == 1) return word != kBad;
#if __CUDA_ARCH__ < 900
#pragma unroll 1
    for (int i = threadIdx.x; i < listed; i += kTeamThreads) ListFor(part)[i] = shared->list[i];
#endif
    Tell(word);
    Meet();
    // Each warp takes what another block has listed.
    constexpr int kWarps = kTeamThreads / 32;
    const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
    const int of = warp % parts, step = 32 * ((kWarps - 1 - of) / parts + 1);
    const unsigned its = lane < parts ? static_cast<unsigned>(Told(lane)) : 0;
    const unsigned all = SumOfWarp(its);
    const int to = mine + static_cast<int>(SumOfWarp(lane < of && lane != part ? its : 0));
    const int n = __shfl_sync(~0u, static_cast<int>(its), of);
    listed = all <= kListed ? static_cast<int>(all) : -1;
#pragma unroll 1
    for (int i = warp / parts * 32 + lane; listed >= 0 && of != part && i < n; i += step)
      shared->list[to + i] = ListedBy(of, i);
    __syncthreads();
    return all < kBad;
  }
  __device__ Place ListedBy(int of, int i) const {
#if __CUDA_ARCH__ >= 900
    return SeeOther(shared->list + i, of);
#else
    return static_cast<const volatile Place*>(ListFor(of))[i];
#endif
  }
  __device__ Place MostListed() {
    Sum own = 0;
    EachListed(listed, [&](Place place) { own = place > own ? place : own; });
    return OfBlock(own, Greater());
  }

  // What shared->sums of the digits above a thread's, of its own, and of all add up to.
  struct Digits {
    Sum before, own, all;
  };
  static constexpr int kPer = kDigits / kTeamThreads;  // of a thread, from TopDigit down
  __device__ static int TopDigit() { return kDigits - 1 - kPer * static_cast<int>(threadIdx.x); }
  __device__ Digits SumDigits() {
    const int top = TopDigit(), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
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

  // Of what is listed: a bound from which on masses reach wanted, with but one element that is
  // needed for it. By one warp, where it can hold the list; 0: it cannot, or keys are equal there.
  template <typename Mass>
  __device__ Place FindFewListed(Sum wanted, const Mass& mass) {
    constexpr int kHeld = 10;
    if (listed > 32 * kHeld) return 0;
    if (threadIdx.x < 32) {
      unsigned keys[kHeld], high[kHeld], low[kHeld], most = 0, none = 0;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int at = static_cast<int>(threadIdx.x) + 32 * i;
        const Place place = at < listed ? shared->list[at] : 0;
        const Sum own = at < listed ? mass(place) : 0;
        keys[i] = static_cast<unsigned>(place >> 32);
        high[i] = static_cast<unsigned>(own >> 20), low[i] = own & 0xfffff;
        most = keys[i] > most ? keys[i] : most;
        none = at < listed && ~keys[i] > none ? ~keys[i] : none;
      }
      unsigned least = ~MostOfWarp(none), above = MostOfWarp(most) + 1;
#pragma unroll 1
      while (above - least > 1) {
        const unsigned middle = least + (above - least) / 2;
        unsigned highs = 0, lows = 0;
#pragma unroll
        for (int i = 0; i < kHeld; ++i)
          if (keys[i] >= middle) highs += high[i], lows += low[i];
        const bool reaches = (Sum{SumOfWarp(highs)} << 20) + SumOfWarp(lows) >= wanted;
        least = reaches ? middle : least;
        above = reaches ? above : middle;
      }
      unsigned equal = 0;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) equal += keys[i] == least;
      equal = SumOfWarp(equal);
      if (threadIdx.x == 0) shared->found[0] = equal == 1 ? Place{least} << 32 : 0;
    }
    __syncthreads();
    return shared->found[0];
  }

  // The same of what is listed, by each block for itself. Digits begin where places differ; the
  // last few are compared with one another.
  template <typename Measure>
  __device__ Place FindListed(Sum wanted, const Measure& measure) {
    const Place any = listed ? shared->list[0] : 0;
    Sum differ = 0;
    EachListed(listed, [&](Place place) { differ |= place ^ any; });
    differ = OfBlock(differ, Or());
    int shift = 0;
    while (differ >> shift >= kDigits) ++shift;
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

}  // namespace
}  // namespace anyop::cuda
