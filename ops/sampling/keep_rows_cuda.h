// SPDX-License-Identifier: Apache-2.0
// Rows of which top_k or top_p keeps some, on CUDA: teams of filter_rows_cuda.h.
#pragma once

#define ANYOP_BLOCKS_MEET 1
#include "filter_rows_cuda.h"

namespace anyop::cuda {
namespace {

struct KeptRows {
  const void* x;
  void* out;
  int64_t row_step, out_step, B;
  sampling::Keeps keeps;
  int parts;
  TeamMemory* memory;
};

// factor * the element down to `last`, `behind` elsewhere.
template <typename T>
__device__ void WriteKept(const TeamRow<T>& row, Place last, float factor, float behind, T* out) {
  for (int64_t v = row.begin + threadIdx.x; v < row.end; v += blockDim.x) {
    const float x = Widen(row.x[v]);
    out[v] = Narrow<T>(PlaceOf(x, static_cast<uint32_t>(v)) < last ? behind : x * factor);
  }
}

template <typename T>
__device__ void KeepRow(TeamRow<T>* row, const sampling::Keeps& keeps, int64_t b, T* out) {
  const bool is_probs = keeps.is_probs;
  const Place own = FindMost(*row, is_probs), most = row->MostOfTeam(own);
  const float value = ValueOf(most), share = keeps.top_p.data ? keeps.top_p[b] : 1;
  const bool is_bad = most == 0 || most == ~Place{0};
  if (is_bad || (is_probs && (!sampling::HasWeights(value, true) || share != share)))
    return WriteKept(*row, ~Place{0}, 1.0f, static_cast<float>(NAN), out);
  const int64_t k = keeps.top_k.data ? keeps.top_k[b] : 0;
  const Scale scale = Scale::OfProbs(value);
  const auto mass = [&](Place place) {
    return static_cast<Sum>(MassOf(scale.Weight(ValueOf(place))));
  };
  const auto mass_from = [&](Place from) {
    Sum sum = 0;
    row->Each([&](Place place) { sum += place >= from ? mass(place) : 0; });
    return row->SumOfTeam(sum);
  };
  Place last = 0;
  if (k > 0 && k < keeps.V) {
    row->ListNear(static_cast<Sum>(k), own);
    last = row->FindLast(0, static_cast<Sum>(k), [](Place) { return Sum{1}; });
  }
  if (share < 1) last = row->FindLast(0, sampling::ShareOf(share, mass_from(0)), mass);
  const float factor = is_probs ? sampling::FactorOf(scale, mass_from(last)) : 1.0f;
  WriteKept(*row, last, factor, is_probs ? 0.0f : static_cast<float>(-INFINITY), out);
}

template <typename T>
__global__ void __launch_bounds__(kTeamThreads) KeepRows(const __grid_constant__ KeptRows p) {
  TeamRow<T> row(p.parts, p.memory);
  for (int64_t b = row.team; b < p.B; b += gridDim.x / p.parts) {
    row.Begin(static_cast<const T*>(p.x) + b * p.row_step, p.keeps.V);
    KeepRow(&row, p.keeps, b, static_cast<T*>(p.out) + b * p.out_step);
    __syncthreads();
  }
}

inline int32_t RunKeep(AnyopCall* call, const AnyopTensor* x, const sampling::Keeps& keeps,
                       int64_t B, const AnyopTensor* out) {
  if (B == 0 || keeps.V == 0) return kAnyopOk;
  const KeptRows rows = {x->data, out->data, x->strides[0], out->strides[0], B, keeps, 1, nullptr};
  return WithFloat32Sums(AnyopDtypeOf(x), [&](auto zero) {
    return RunTeams<KeepRows<decltype(zero)>>(call, B, keeps.V, rows);
  });
}

}  // namespace
}  // namespace anyop::cuda
