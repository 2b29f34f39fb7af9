// SPDX-License-Identifier: Apache-2.0
// The tokens that top_p keeps of a whole row on CUDA. While a row is read for the first time, its
// elements are counted in bins of nearly equal weight. These tell the few bins in which the last
// token must be; the second reading lists what is in them, and sums the masses of what is above.
#pragma once

#include "read_rows_cuda.h"

namespace anyop::cuda {
namespace {

// Bins of a row: 64 for each power of two of weights, 24 powers below a guess of the greatest, 8
// above it; the last ones have the rest. Monotonic; nothing else about a result depends on it.
struct Bins {
  float guess, factor;
  bool is_probs;

  static constexpr int kPer = 64, kGuess = kDigits - 8 * kPer;

  __device__ unsigned BitsOfProb(float x) const { return __float_as_uint(x + 0.0f) >> 17; }
  __device__ int operator()(float x) const {
    if (is_probs) {
      const int bin = static_cast<int>(BitsOfProb(x) - BitsOfProb(guess)) + kGuess;
      return bin < 0 ? 0 : bin >= kDigits ? kDigits - 1 : bin;
    }
    constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
    const float at = fminf(fmaxf((x - guess) * factor + kGuess, 0), kDigits - 1);
    return static_cast<int>(__float_as_uint(at + kRound) - __float_as_uint(kRound));
  }
  // About where a bin begins.
  __device__ float BeginOf(int bin) const {
    if (is_probs)
      return __uint_as_float((BitsOfProb(guess) + static_cast<unsigned>(bin - kGuess)) << 17);
    return guess + (static_cast<float>(bin - kGuess) - 0.5f) / factor;
  }
  // What an element of a bin weighs, about, in units of 2^-36 of what the guess does.
  __device__ Sum MassOfBin(int bin) const {
    float weight;
    if (is_probs) {
      const unsigned bits = BitsOfProb(guess) + static_cast<unsigned>(bin - kGuess);
      weight = __uint_as_float(bits << 17 | 1u << 16) / guess;
    } else {
      weight = PowerOfTwo(static_cast<float>(bin - kGuess) / kPer);
    }
    return static_cast<Sum>(weight * 0x1p36f);
  }
};

// The greatest value of the row, counted into shared->bins of the block; again, where it is far
// above the guess and would share the last bin with others.
template <typename T>
__device__ Place CountBins(TeamRow<T>* row, bool is_probs, float factor, int64_t V, Bins* bins) {
  constexpr int kGuessed = 4;
  const float lowest = is_probs ? 0.0f : -INFINITY;
  float most = -INFINITY;
#pragma unroll
  for (int i = 0; i < kGuessed; ++i) {
    const int v = static_cast<int>(threadIdx.x) + i * kTeamThreads;
    if (v < V) most = fmaxf(most, row->At(v));
  }
  float guess = FloatOfKey(static_cast<uint32_t>(row->OfBlock(KeyOf(most), Greater())));
#pragma unroll 1
  for (bool again = false;; again = true) {
#pragma unroll 1
    for (int i = threadIdx.x; i < kDigits; i += kTeamThreads) row->shared->bins[i] = 0;
    __syncthreads();
    *bins = {guess, factor * Bins::kPer, is_probs};
    bool bad = false;
    row->template EachRun<2>(row->runs(), lowest, [&](int v, const float (&x)[kRun]) {
      most = fmaxf(most, MostOf(x));
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        bad |= !(x[j] >= lowest);
        if (v + j < row->end) atomicAdd(row->shared->bins + (*bins)(x[j]), 1u);
      }
    });
    const Place place = row->MostOfTeam(bad ? ~Place{0} : PlaceOf(most, 0));
    guess = ValueOf(place);
    if (again || (*bins)(guess) < kDigits - 1) return place;
  }
}

// Lists what may be the last element to keep of the share p, if bins are off by less than the share
// `margin` of all. The masses of all elements, and of what is above the listed ones.
template <typename T>
__device__ void ListShare(TeamRow<T>* row, const Scale& scale, const Bins& bins,
                          const TeamList::Digits& digits, float p, float margin, Sum* all,
                          Sum* above) {
  TeamShared* const shared = row->shared;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float share = fminf(fmaxf(p + (i ? margin : -margin), 0), 1);
    const Sum reached = static_cast<Sum>(static_cast<float>(digits.all) * share) + 1;
    row->FindDigit(digits, reached < digits.all ? reached : digits.all, shared->found + 4 * i);
  }
  if (threadIdx.x == 0) shared->listed = 0;
  __syncthreads();
  const int first = static_cast<int>(shared->found[0]), last = static_cast<int>(shared->found[4]);
  const float most = first + 1 < kDigits ? bins.BeginOf(first + 1) : INFINITY;
  const float least = p + margin < 1 && last > 0 ? bins.BeginOf(last) : -INFINITY;
  *all = *above = 0;
  row->template EachRun<2>(
      row->runs(), scale.is_probs ? 0.0f : -INFINITY, [&](int v, const float (&x)[kRun]) {
        Masses of_all, of_above;
        bool any = false;
#pragma unroll
        for (int j = 0; j < kRun; ++j) {
          const Masses mass(scale.Weight(x[j]));
          of_all += mass;
          of_above += x[j] >= most ? mass : Masses();
          any |= x[j] >= least && x[j] < most;
        }
        *all += of_all.total();
        *above += of_above.total();
        if (!any) return;
#pragma unroll
        for (int j = 0; j < kRun; ++j)
          if (x[j] >= least && x[j] < most && v + j < row->end && scale.Weight(x[j]) > 0)
            row->Push(atomicAdd(&shared->listed, 1), x[j], v + j);
      });
  *all = row->OfBlock(*all, Add());
  *above = row->OfBlock(*above, Add());
  if (row->parts > 1) row->Tell(*all), row->Tell(*above);
  row->Gather(false);
  if (row->parts == 1) return;
  *all = row->JoinTold(Add(), 2);
  *above = row->JoinTold(Add(), 1);
}

// Of a row with its bins: the place of the last token that the share p keeps; the mass of all, and
// of what is kept.
template <typename T>
__device__ Place FindShare(TeamRow<T>* row, const Scale& scale, const Bins& bins, float p,
                           Sum* total, Sum* kept) {
  const auto mass = [&](Place place) {
    return static_cast<Sum>(MassOf(scale.Weight(ValueOf(place))));
  };
  const Team::Bins4 counts = row->JoinBins();
  Sum spread = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int bin = 4 * static_cast<int>(threadIdx.x) + i;
    const Sum n = counts.at[i], of_bin = n * bins.MassOfBin(bin);
    row->shared->sums[bin] = of_bin;
    if (n) spread += static_cast<Sum>(static_cast<float>(of_bin) * rsqrtf(static_cast<float>(n)));
  }
  spread = row->OfBlock(spread, Add());
  const TeamList::Digits digits = row->SumDigits();
  // An element is off by half a bin at most, and so many of a bin by less together.
  constexpr float kMost = 1.1f / Bins::kPer * 0.7f;
  float margin = kMost * static_cast<float>(spread) / static_cast<float>(digits.all) + 0.0002f;
  Sum wanted;
#pragma unroll 1
  while (true) {
    Sum above;
    ListShare(row, scale, bins, digits, p, margin, total, &above);
    wanted = sampling::ShareOf(p, *total);
    if (row->listed >= 0 && above < wanted && row->SumListed(0, mass) >= wanted - above) {
      const Place last = row->FindListed(wanted - above, mass);
      *kept = above + row->SumListed(last, mass);
      row->listed = -1;
      return last;
    }
    if (row->listed < 0 || margin >= kMost) break;
    margin = kMost;
  }
  row->listed = -1;
  const Place last = row->FindCounted(0, wanted, mass);
  *kept = row->SumFrom(last, mass);
  return last;
}

}  // namespace
}  // namespace anyop::cuda
