// SPDX-License-Identifier: Apache-2.0
// Attention in float32 and float64, by plain arithmetic.
//
// A block has eight queries of one head, a warp each. 32 keys at a time lie in shared memory, one
// for each lane to multiply with its query; then each lane adds up every 32nd feature of the values
// that the query sees, read where they lie. Scores, weights and sums are of q's type.
#pragma once

#include "attention_cuda.h"

namespace anyop::cuda {
namespace {

constexpr int kPlainRows = 8, kPlainKeys = 32, kPlainThreads = 32 * kPlainRows;
constexpr int kPlainFeatures = 256;  // at most, of queries and values

template <typename T>
size_t PlainSharedBytes(int D) {
  return sizeof(T) * (kPlainKeys * (D + 1) + kPlainRows * D);
}

template <typename T>
__device__ T ScoreOf(const AttentionView& p, const Place& place, const T* q, const T* k, int s,
                     int t) {
  T score = 0;
  for (int d = 0; d < p.D; ++d) score = MulAdd(q[d], k[d], score);
  score *= static_cast<T>(p.scale);
  if (p.softcap > 0) score = CapOf(score, static_cast<T>(p.softcap));
  if (!p.IsPlain()) score += BiasOf<T, T>(p, place, s, t);
  return score * static_cast<T>(1.44269504088896340736);
}

template <typename T>
__device__ __forceinline__ void AttendTilePlainly(const AttentionView& p, const Place& place) {
  const int thread = threadIdx.x, lane = thread % 32, warp = thread / 32;
  T* keys = reinterpret_cast<T*>(DynamicShared());
  T* q = keys + kPlainKeys * (p.D + 1) + warp * p.D;
  const int top = place.tile * kPlainRows, s = top + warp, g = place.h / p.group;
  const int last = p.Last(top, kPlainRows);
  const int first = s < p.S ? p.First(s) : 0, end = s < p.S ? p.End(s) : 0;
  const T* from = static_cast<const T*>(p.q) + p.q_steps.At(place.b, place.h, s);
  for (int d = lane; s < p.S && d < p.D; d += 32) q[d] = from[d];
  T max = -T(INFINITY), sum = 0, out[kPlainFeatures / 32] = {};
  for (int t0 = p.First(top); t0 < p.End(last); t0 += kPlainKeys) {
    const T* k = static_cast<const T*>(p.k) + p.k_steps.At(place.b, g, t0);
    const T* v = static_cast<const T*>(p.v) + p.v_steps.At(place.b, g, t0);
    __syncthreads();
    for (int row = warp; row < kPlainKeys && t0 + row < p.T; row += kPlainRows)
      for (int d = lane; d < p.D; d += 32) keys[row * (p.D + 1) + d] = k[row * p.k_steps.row + d];
    __syncthreads();
    const int t = t0 + lane;
    const bool is_seen = t >= first && t < end;
    const T score = is_seen ? ScoreOf(p, place, q, keys + lane * (p.D + 1), s, t) : -T(INFINITY);
    T most = max < score ? score : max;
    for (int by = 16; by > 0; by /= 2) {
      const T other = __shfl_xor_sync(~0u, most, by);
      most = most < other ? other : most;
    }
    const T base = most == -T(INFINITY) ? T(0) : most, factor = PowerOfTwo(max - base);
    const T weight = is_seen ? PowerOfTwo(score - base) : T(0);
    max = most;
    sum = sum * factor + weight;
#pragma unroll
    for (int i = 0; i < kPlainFeatures / 32; ++i) out[i] *= factor;
    for (unsigned left = __ballot_sync(~0u, is_seen); left; left &= left - 1) {
      const int key = __ffs(static_cast<int>(left)) - 1;
      const T share = __shfl_sync(~0u, weight, key);
#pragma unroll
      for (int i = 0; i < kPlainFeatures / 32; ++i)
        if (lane + 32 * i < p.E)
          out[i] = MulAdd(share, v[key * p.v_steps.row + lane + 32 * i], out[i]);
    }
  }
  for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  if (s >= p.S) return;
  const RowEnd<T> row = EndRow(p, place.h, max, sum);
  T* to = static_cast<T*>(p.out) + p.out_steps.At(place.b, place.h, s);
#pragma unroll
  for (int i = 0; i < kPlainFeatures / 32; ++i)
    if (lane + 32 * i < p.E) to[lane + 32 * i] = sum == 0 ? T(0) : out[i] * row.share;
  if (p.lse && lane == 0) p.lse[p.lse_steps.At(place.b, place.h, s)] = LogOf(row);
}

template <typename T>
__global__ __launch_bounds__(kPlainThreads) void AttendPlainly(
    const __grid_constant__ AttentionView p) {
  const int64_t item = ItemOf();
  if (item < p.items) AttendTilePlainly<T>(p, PlaceOf(p, item));
}

template <typename T>
__global__ __launch_bounds__(kPlainThreads) void AttendPackedPlainly(
    const __grid_constant__ AttentionView p) {
  __shared__ Packed own;
  if (EnterPacked<T, kPlainThreads>(p, kPlainRows, &own)) AttendTilePlainly<T>(own.view, own.place);
}

}  // namespace
}  // namespace anyop::cuda
