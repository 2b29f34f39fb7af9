// SPDX-License-Identifier: Apache-2.0
// Gradients of attention in float32, by plain arithmetic: a warp has a query, or a key, and goes
// over what it sees 32 at a time, one for each lane.
#pragma once

#include "attention_backward_cuda.h"
#include "attention_plain.h"

namespace anyop::cuda {
namespace {

constexpr int kPlainGradientRows = 4, kPlainGradientThreads = 32 * kPlainGradientRows;

// A lane's pair of a query and a key: its weight, and the gradient of q.k / scale.
struct PlainPair {
  float weight, slope;
};
__device__ inline PlainPair GradePair(const GradientView& p, const GradientPlace& place, int h,
                                      int s, int t, float base, float delta) {
  const AttentionView& a = p.a;
  const int g = h / a.group;
  const auto row_of = [&](const void* x, const Steps& steps, int head, int row) {
    return static_cast<const float*>(x) + steps.At(place.b, head, row);
  };
  const float* q = row_of(a.q, a.q_steps, h, place.at.q + s);
  const float* k = row_of(a.k, a.k_steps, g, place.at.k + t);
  const float* grad = row_of(p.grad_out, p.grad_out_steps, h, place.at.q + s);
  const float* v = row_of(a.v, a.v_steps, g, place.at.k + t);
  float score = 0, dot = 0;
  for (int d = 0; d < a.D; ++d) score = MulAdd(q[d], k[d], score);
  for (int e = 0; e < a.E; ++e) dot = MulAdd(grad[e], v[e], dot);
  CappedScore capped = CapScore(a, score * static_cast<float>(a.scale));
  if (a.softcap > 0) {  // as exact as the forward's
    const auto cap = static_cast<float>(a.softcap);
    const float part = tanhf(score * static_cast<float>(a.scale) / cap);
    capped = {cap * part, 1 - part * part};
  }
  if (!a.IsPlain())
    capped.score += BiasOf<float, float>(a, {0, h, place.b}, s, t, place.at.slope_offset);
  const float weight = PowerOfTwo(MulAdd(capped.score, 1.44269504088896340736f, -base));
  return {weight, SlopeOf(weight, dot, delta, capped.slope)};
}

// sums[d] += weight of each lane times its row, in their order.
__device__ inline void AddPlainRows(float (&sums)[kPlainFeatures / 32], float weight,
                                    const float* rows, int64_t step, int width) {
  const int lane = threadIdx.x % 32;
  for (unsigned left = __ballot_sync(~0u, weight != 0); left; left &= left - 1) {
    const int from = __ffs(static_cast<int>(left)) - 1;
    const float share = __shfl_sync(~0u, weight, from);
#pragma unroll
    for (int i = 0; i < kPlainFeatures / 32; ++i)
      if (lane + 32 * i < width)
        sums[i] = MulAdd(share, rows[from * step + lane + 32 * i], sums[i]);
  }
}
__device__ inline void WritePlainRow(const float (&sums)[kPlainFeatures / 32], float* to, int width,
                                     float scale) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kPlainFeatures / 32; ++i)
    if (lane + 32 * i < width) to[lane + 32 * i] = sums[i] * scale;
}

template <bool kPacked>
__global__ __launch_bounds__(kPlainGradientThreads) void GradeQueriesPlainly(
    const __grid_constant__ GradientView p) {
  const int64_t item = ItemOf();
  if (item >= p.a.items) return;
  if (!HasOrder<kPacked, kPlainGradientThreads>(p.a)) {
    const Place of = PlaceOf(p.a, item);
    const int64_t top = int64_t{of.tile} * kPlainGradientRows;
    return FillGradientWithNan<float>(p.grad_q, p.grad_q_steps, 0, of.h, top,
                                      std::min<int64_t>(p.a.S, top + kPlainGradientRows), p.a.D);
  }
  GradientPlace place;
  if (!PlaceQueries<kPacked>(p, item, kPlainGradientRows, &place)) return;
  const GradientRange& at = place.at;
  const int lane = threadIdx.x % 32, g = place.h / p.a.group;
  const int s = place.tile * kPlainGradientRows + static_cast<int>(threadIdx.x) / 32;
  if (s >= at.S) return;
  const float delta = SetDelta<float>(p, place, s), base = BaseOf(p, place, place.h, s);
  if (!p.grad_q) return;
  float sums[kPlainFeatures / 32] = {};
  for (int t0 = at.First(s); t0 < at.End(s); t0 += 32) {
    PlainPair pair = {0, 0};
    if (t0 + lane < at.End(s)) pair = GradePair(p, place, place.h, s, t0 + lane, base, delta);
    const float* k = static_cast<const float*>(p.a.k) + p.a.k_steps.At(place.b, g, at.k + t0);
    AddPlainRows(sums, pair.slope, k, p.a.k_steps.row, p.a.D);
  }
  float* to = static_cast<float*>(p.grad_q) + p.grad_q_steps.At(place.b, place.h, at.q + s);
  WritePlainRow(sums, to, p.a.D, static_cast<float>(p.a.scale));
}

template <bool kPacked>
__global__ __launch_bounds__(kPlainGradientThreads) void GradeKeysPlainly(
    const __grid_constant__ GradientView p) {
  const int64_t item = ItemOf();
  const bool is_ordered = HasOrder<kPacked, kPlainGradientThreads>(p.a);
  if (item >= p.key_items) return EndWithSinks<kPlainGradientThreads>(p, item, is_ordered);
  GradientPlace place;
  if (!is_ordered) return FillKeysWithNan<float>(p, item, kPlainGradientRows);
  if (!PlaceKeys<kPacked>(p, item, kPlainGradientRows, &place)) return;
  const GradientRange& at = place.at;
  const int lane = threadIdx.x % 32, g = place.h;
  const int t = place.tile * kPlainGradientRows + static_cast<int>(threadIdx.x) / 32;
  if (t >= at.T) return;
  const int first = at.FirstQuery(t), end = at.EndQuery(t);
  float k[kPlainFeatures / 32] = {}, v[kPlainFeatures / 32] = {};
  for (int h = g * p.a.group; h < (g + 1) * p.a.group; ++h) {
    for (int s0 = first; s0 < end; s0 += 32) {
      const int s = s0 + lane;
      PlainPair pair = {0, 0};
      if (s < end)
        pair = GradePair(p, place, h, s, t, BaseOf(p, place, h, s), *DeltaOf(p, place, h, s));
      const auto rows_of = [&](const void* x, const Steps& steps) {
        return static_cast<const float*>(x) + steps.At(place.b, h, at.q + s0);
      };
      if (p.grad_v)
        AddPlainRows(v, pair.weight, rows_of(p.grad_out, p.grad_out_steps), p.grad_out_steps.row,
                     p.a.E);
      if (p.grad_k)
        AddPlainRows(k, pair.slope, rows_of(p.a.q, p.a.q_steps), p.a.q_steps.row, p.a.D);
    }
  }
  const auto row_of = [&](void* x, const Steps& steps) {
    return static_cast<float*>(x) + steps.At(place.b, g, at.k + t);
  };
  if (p.grad_k)
    WritePlainRow(k, row_of(p.grad_k, p.grad_k_steps), p.a.D, static_cast<float>(p.a.scale));
  if (p.grad_v) WritePlainRow(v, row_of(p.grad_v, p.grad_v_steps), p.a.E, 1);
}

}  // namespace
}  // namespace anyop::cuda
