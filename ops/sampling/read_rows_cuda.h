// SPDX-License-Identifier: Apache-2.0
// The first time that a team of filter_rows_cuda.h reads its row: the greatest element, and a list
// of those near it.
#pragma once

#include "filter_rows_cuda.h"

namespace anyop::cuda {
namespace {

// A thread's greatest element of those it reads. pick(v, x) sees each run too. ~0: one is NaN, or
// a probability is below 0.
template <typename T, typename Pick>
__device__ Place ReadRow(const TeamRow<T>& row, bool is_probs, const Pick& pick) {
  constexpr int kRun = TeamRow<T>::kRun;
  const float least = is_probs ? 0.0f : -INFINITY;
  float most = -INFINITY;
  int64_t at = row.begin + int64_t{threadIdx.x} * kRun;
  const bool any = at < row.end;
  bool bad = false;
  row.EachRun(row.runs(), least, [&](int64_t v, const float (&x)[kRun]) {
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      bad |= !(x[j] >= least);
      if (x[j] > most) most = x[j], at = v + j;
    }
    pick(v, x);
  });
  if (bad) return ~Place{0};
  return any ? PlaceOf(most, static_cast<uint32_t>(at)) : 0;
}
template <typename T>
__device__ Place FindMost(TeamRow<T>* row, bool is_probs) {
  return row->Gather(ReadRow(*row, is_probs, [](int64_t, const auto&) {}));
}

// The same, and lists what is at least what so many of the block's threads reach by their first
// elements: that many of the block are listed at least.
template <typename T>
__device__ Place FindNear(TeamRow<T>* row, bool is_probs, int threads) {
  constexpr int kRun = TeamRow<T>::kRun;
  const int64_t first = TeamRow<T>::kAhead * kTeamThreads, all = row->runs();
  float most = -INFINITY;
  bool any = false;
  row->EachRun(first < all ? first : all, -INFINITY, [&](int64_t, const float (&x)[kRun]) {
    any = true;
#pragma unroll
    for (int j = 0; j < kRun; ++j) most = x[j] > most ? x[j] : most;
  });
  const unsigned key = row->FindKey(any ? KeyOf(most) : 0, threads);
  const float least = key <= KeyOf(-INFINITY) ? -INFINITY : FloatOfKey(key);
  if (threadIdx.x == 0) row->shared->listed = 0;
  __syncthreads();
  return row->Gather(ReadRow(*row, is_probs, [&](int64_t v, const float (&x)[kRun]) {
#pragma unroll
    for (int j = 0; j < kRun; ++j)
      if (x[j] >= least) row->Push(x[j], v + j);
  }));
}
// The sum of all masses, by one more reading.
template <typename T>
__device__ Sum SumMasses(TeamRow<T>* row, const Scale& scale) {
  constexpr int kRun = TeamRow<T>::kRun;
  Sum total = 0;
  row->EachRun(row->runs(), scale.is_probs ? 0.0f : -INFINITY,
               [&](int64_t, const float (&x)[kRun]) {
#pragma unroll
                 for (int j = 0; j < kRun; ++j) total += MassOf(scale.Weight(x[j]));
               });
  return row->SumOfTeam(total);
}

// Of the threads, for k to be listed; for the list to hold much, but not more than it can, of a row
// of V.
constexpr int kMostNear = 384;
template <typename T>
__device__ int ThreadsOfShare(int64_t V) {
  const float in_list = TeamRow<T>::kRun * TeamRow<T>::kAhead * (0.85f * kListed);
  const int threads =
      static_cast<int>(kTeamThreads * (1 - Exponential(-in_list / static_cast<float>(V))));
  return threads > 0 ? threads : 1;
}

}  // namespace
}  // namespace anyop::cuda
