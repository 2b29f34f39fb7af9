// SPDX-License-Identifier: Apache-2.0
// Rows of which top_k or top_p keeps some, on CUDA: teams of filter_rows_cuda.h.
#pragma once

#define ANYOP_BLOCKS_MEET 1
#include "share_rows_cuda.h"

namespace anyop::cuda {
namespace {

struct KeptRows {
  const void* x;
  void* out;
  int64_t row_step, out_step, B;
  sampling::Keeps keeps;
  int parts, share;
  TeamMemory* memory;
  Place* lists;
};

// factor * the element down to `last`, `behind` elsewhere.
template <typename T>
__device__ void WriteKept(const TeamRow<T>& row, Place last, float factor, float behind, T* out) {
  using Few = Vector<T, kRun>;
  const bool aligned = reinterpret_cast<uintptr_t>(out + row.begin) % sizeof(Few) == 0;
  row.template EachRun<2>(row.runs(), 0, [&](int v, const float (&x)[kRun]) {
    Few kept;
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      const bool is_kept = PlaceOf(x[j], static_cast<uint32_t>(v + j)) >= last;
      kept.at[j] = Narrow<T>(is_kept ? x[j] * factor : behind);
    }
    if (aligned && v + kRun <= row.end) {
      *reinterpret_cast<Few*>(out + v) = kept;
    } else {
#pragma unroll
      for (int j = 0; j < kRun; ++j)
        if (v + j < row.end) out[v + j] = kept.at[j];
    }
  });
}

template <typename T>
__device__ void KeepRow(TeamRow<T>* row, const sampling::Keeps& keeps, int64_t b, T* out) {
  const bool is_probs = keeps.is_probs;
  const float share = keeps.top_p.data ? keeps.top_p[b] : 1;
  const int64_t k = keeps.top_k.data ? keeps.top_k[b] : 0;
  const bool has_k = k > 0 && k < keeps.V;
  const bool few = has_k && k <= kMostNear;
  Place most, last = 0;
  unsigned least = 0;
  Bins bins = {};
  if (few) {
    const bool good = ListNear(row, is_probs, MostOfFirst(*row), static_cast<int>(k), &least);
    most = good && row->listed < 0 ? FindMost(row, is_probs) : row->MostOf(good);
    if (good && row->listed >= 0) last = row->FindFirst(least, static_cast<int>(k));
  } else if (share < 1) {
    most = CountBins(row, is_probs, 1, keeps.V, &bins);
  } else {
    most = FindMost(row, is_probs);
  }
  const float value = ValueOf(most);
  const bool is_bad = most == 0 || most == ~Place{0};
  if (is_bad || (is_probs && (!sampling::HasWeights(value, true) || share != share)))
    return WriteKept(*row, ~Place{0}, 1.0f, static_cast<float>(NAN), out);
  const Scale scale = Scale::OfProbs(value);
  const auto mass = [&](Place place) {
    return static_cast<Sum>(MassOf(scale.Weight(ValueOf(place))));
  };
  Sum kept = 0, total;
  if (has_k && last == 0) last = row->FindCountedFirst(k);
  if (share < 1) {
    last = FindShare(row, scale, bins, share, &total, &kept);
  } else if (is_probs) {
    kept = row->listed >= 0 ? row->SumListed(last, mass) : row->SumFrom(last, mass);
  }
  const float factor = is_probs ? sampling::FactorOf(scale, kept) : 1.0f;
  WriteKept(*row, last, factor, is_probs ? 0.0f : static_cast<float>(-INFINITY), out);
}

template <typename T>
__global__ void __launch_bounds__(kTeamThreads, kTeamBlocks)
    KeepRows(const __grid_constant__ KeptRows p) {
  TeamRow<T> row(p);
  for (int64_t b = row.team(); b < p.B; b += gridDim.x / p.parts) {
    const T* const x = static_cast<const T*>(p.x) + b * p.row_step;
    row.Prefetch(x, p.keeps.V);
    row.Begin(x, p.keeps.V);
    KeepRow(&row, p.keeps, b, static_cast<T*>(p.out) + b * p.out_step);
    __syncthreads();
  }
  row.Leave();
}

inline int32_t RunKeep(AnyopCall* call, const AnyopTensor* x, const sampling::Keeps& keeps,
                       int64_t B, const AnyopTensor* out) {
  if (B == 0 || keeps.V == 0) return kAnyopOk;
  const KeptRows rows = {x->data, out->data, x->strides[0], out->strides[0], B, keeps,
                         1,       0,         nullptr,       nullptr};
  return WithFloat32Sums(AnyopDtypeOf(x), [&](auto zero) {
    return RunTeams<KeepRows<decltype(zero)>, 2>(call, B, keeps.V, rows);
  });
}

}  // namespace
}  // namespace anyop::cuda
