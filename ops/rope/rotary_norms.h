// SPDX-License-Identifier: Apache-2.0
// The RMS norm of heads that are turned too, on CUDA: weights, and sums over a team of lanes.
#pragma once

#include "rotary_rows.h"

namespace anyop::cuda {
namespace {

// What the RMS norm of a head is made of besides its elements.
template <typename W>
struct HeadNorm {
  const char* weight[2];  // of queries, of keys
  AnyopDtype dtype;
  W offset, eps, inverse_D;

  template <typename Args>
  explicit HeadNorm(const Args* args)
      : weight{static_cast<const char*>(args->q_weight->data),
               static_cast<const char*>(args->k_weight->data)},
        dtype(AnyopDtypeOf(args->q_weight)),
        offset(static_cast<W>(args->weight_offset)),
        eps(EpsilonOf<W>(args->eps)),
        inverse_D(1 / static_cast<W>(args->D)) {}

  bool FitsVectors() const { return IsAligned(weight[0], 16) && IsAligned(weight[1], 16); }
  // 1 / the root mean square.
  __device__ W Scale(W squares) const { return ReciprocalRoot(MulAdd(squares, inverse_D, eps)); }
};

// Sums over a team of lanes, all at once.
template <typename W, int kSums>
__device__ void SumOverTeam(RowTeam<W>& team, int lanes, W (&sums)[kSums]) {
  static_assert(kSums % 2 == 0, "");
  if (lanes > 32) {
#pragma unroll
    for (int i = 0; i < kSums; i += 2) team.Totals(sums[i], sums[i + 1]);
    return;
  }
#pragma unroll 1
  for (int step = lanes / 2; step; step /= 2) {
    W of[kSums];
#pragma unroll
    for (int i = 0; i < kSums; ++i) of[i] = __shfl_xor_sync(~0u, sums[i], step);
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] += of[i];
  }
}

// The weights of a unit.
template <typename In>
struct WeightsOf {
  using W = typename In::W;
  Couple<W> of[2][In::kCouples];

  __device__ WeightsOf(const HeadNorm<W>& norm, bool of_keys, const Unit& unit) {
    const char* from = of_keys ? norm.weight[1] : norm.weight[0];
    if constexpr (In::kPer > 1) {
      if (norm.dtype == kDtypeOf<typename In::Type>) {
        Read<typename In::Type>(norm, from, unit);
        return;
      }
    }
    Read<W>(norm, from, unit);
  }

 private:
  template <typename TW>
  __device__ void Read(const HeadNorm<W>& norm, const char* from, const Unit& unit) {
    Packed<TW, In::kPer> packed[2];
    packed[0].Read(from, unit.a, norm.dtype);
    packed[1].Read(from, unit.b, norm.dtype);
#pragma unroll
    for (int s = 0; s < 2; ++s) {
#pragma unroll
      for (int i = 0; i < In::kCouples; ++i) {
        const auto w = packed[s][i];
        of[s][i] = {w.first + norm.offset, w.second + norm.offset};
      }
    }
  }
};

}  // namespace
}  // namespace anyop::cuda
