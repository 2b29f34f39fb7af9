// SPDX-License-Identifier: Apache-2.0
// The first time that a team of filter_rows_cuda.h reads its row: the greatest element, and a list
// of those near it.
#pragma once

#include "filter_rows_cuda.h"

namespace anyop::cuda {
namespace {

// The greatest element of the row. ~0: one is NaN, or a probability is below 0.
template <typename T>
__device__ Place FindMost(TeamRow<T>* row, bool is_probs) {
  const float least = is_probs ? 0.0f : -INFINITY;
  float most = -INFINITY;
  int at = row->begin + static_cast<int>(threadIdx.x) * kRun;
  const bool any = at < row->end;
  bool bad = false;
  row->EachRun(row->runs(), least, [&](int v, const float (&x)[kRun]) {
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      bad |= !(x[j] >= least);
      if (x[j] > most) most = x[j], at = v + j;
    }
  });
  row->listed = -1;
  return row->MostOfTeam(bad ? ~Place{0} : any ? PlaceOf(most, static_cast<uint32_t>(at)) : 0);
}

template <int kCount>
__device__ float MostOf(const float (&x)[kCount]) {
  float most = x[0];
#pragma unroll
  for (int j = 1; j < kCount; ++j) most = AtLeast(most, x[j]);
  return most;
}
// Of all that a thread has seen: the greatest, and whether a row is bad.
struct Seen {
  float most = -INFINITY, least = 0;
  bool is_probs;

  __device__ explicit Seen(bool is_probs) : is_probs(is_probs) {}
  template <int kCount>
  __device__ float See(const float (&x)[kCount]) {
    const float of_run = MostOf(x);
    most = AtLeast(most, of_run);
    if (is_probs) {
#pragma unroll
      for (int j = 0; j < kCount; ++j) least = fminf(least, x[j]);
    }
    return of_run;
  }
  __device__ bool IsBad() const { return most != most || least < 0; }
};

// The key of the greatest of so many elements of a thread: those that all threads read first.
template <typename T>
__device__ unsigned MostOfFirst(const TeamRow<T>& row, int each = 16) {
  const int all = row.runs(), first = each / kRun * kTeamThreads;
  float most = -INFINITY;
  row.template EachRun<2>(first < all ? first : all, -INFINITY,
                          [&](int, const float (&x)[kRun]) { most = AtLeast(most, MostOf(x)); });
  return static_cast<int>(threadIdx.x) < all && most == most ? KeyOf(most) : 0;
}

constexpr int kMostNear = 384;  // of the threads, for k to be listed
constexpr int kFewNear = 96;    // for them to look at few elements first

// Lists what is at least what so many of the block's threads reach by their first elements: that
// many of the block are listed at least, `threads` of them from the key `least` on. False: the row
// is bad.
template <typename T>
__device__ bool ListNear(TeamRow<T>* row, bool is_probs, unsigned most_of_first, int threads,
                         unsigned* least) {
  if (threads > kFewNear) most_of_first = MostOfFirst(*row, 32);
  const unsigned key = row->FindKey(most_of_first, threads);
  const float from = key <= KeyOf(-INFINITY) ? -INFINITY : FloatOfKey(key);
  *least = KeyOf(from);
  if (threadIdx.x == 0) row->shared->listed = 0;
  __syncthreads();
  Seen seen(is_probs);
  row->template EachRun<2>(row->runs(), is_probs ? 0.0f : -INFINITY,
                           [&](int v, const float (&x)[kRun]) {
                             if (seen.See(x) >= from) row->ListRun(v, x, from);
                           });
  return row->Gather(seen.IsBad(), KeyOf(seen.most));
}

// A sum of up to 2,048 masses (MassOf) of weights up to 1: two numbers of 20 bits each.
struct Masses {
  unsigned high = 0, low = 0;

  __device__ Masses() {}
  __device__ explicit Masses(float weight) {
#if ANYOP_PTX
    constexpr float kOne = 8388608.0f;  // 2^23: what is added to it is cut to an integer
    const float units = weight * 0x1p20f, whole = __fadd_rz(units, kOne);
    high = __float_as_uint(whole) - __float_as_uint(kOne);
    low = __float_as_uint(__fmaf_rz(units - (whole - kOne), 0x1p20f, kOne)) - __float_as_uint(kOne);
#else
    const uint64_t mass = MassOf(weight);
    high = static_cast<unsigned>(mass >> 20), low = static_cast<unsigned>(mass & 0xfffff);
#endif
  }
  __device__ void operator+=(const Masses& more) { high += more.high, low += more.low; }
  __device__ Sum total() const { return (Sum{high} << 20) + low; }
};

// The sum of all masses, by one more reading.
template <typename T>
__device__ Sum SumMasses(TeamRow<T>* row, const Scale& scale) {
  Sum total = 0;
  row->template EachRun<2>(row->runs(), scale.is_probs ? 0.0f : -INFINITY,
                           [&](int, const float (&x)[kRun]) {
                             Masses masses;
#pragma unroll
                             for (int j = 0; j < kRun; ++j) masses += Masses(scale.Weight(x[j]));
                             total += masses.total();
                           });
  return row->SumOfTeam(total);
}

}  // namespace
}  // namespace anyop::cuda
