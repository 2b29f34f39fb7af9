// SPDX-License-Identifier: Apache-2.0
// Attention to pages in float32, by plain arithmetic: a warp for a token's head.
#pragma once

#include "attention_paged_view.h"
#include "attention_plain.h"

namespace anyop::cuda {
namespace {

template <typename C>
__global__ __launch_bounds__(128) void AttendPagesPlainly(const __grid_constant__ PagedView p) {
  if (p.cu_q && !AreInOrder<128>(p.cu_q, p.B, p.S)) {
    for (int g = 0; g < p.G; ++g) FillPagesWithNan<float>(p, g, blockIdx.x, gridDim.x);
    return;
  }
  const int64_t row = int64_t{blockIdx.x} * 4 + threadIdx.x / 32;
  if (row >= int64_t{p.S} * p.H) return;
  const int token = static_cast<int>(row / p.H), h = static_cast<int>(row % p.H), g = h / p.group;
  const int lane = threadIdx.x % 32;
  PagedPlace at = {};
  at.b = SequenceOf(p, token);
  at.first = p.cu_q ? StartOf(p.cu_q, p.B, p.S, at.b + 1) : at.b * p.each;
  at.S = (p.cu_q ? StartOf(p.cu_q, p.B, p.S, at.b + 2) : at.first + p.each) - at.first;
  at.T = static_cast<int>(p.LengthOf(at.b));
  bool is_wrong = at.T < 0 || at.T > p.places;
  if (is_wrong) at.T = 0;
  const PagedKeys keys = {at.T - at.S, p.left, p.right, 0, at.T};
  const int s = token - at.first, end = at.b < 0 ? 0 : keys.End(s);
  const auto* q = static_cast<const float*>(p.q) + p.q_steps.At(0, h, token);
  const float k_scale = p.k_scale ? p.k_scale[g * p.k_scale_step] : 1;
  const float v_scale = p.v_scale ? p.v_scale[g * p.v_scale_step] : 1;
  float max = -INFINITY, sum = 0, out[kPlainFeatures / 32] = {};
  for (int t0 = keys.First(s); t0 < end; t0 += 32) {
    const int t = t0 + lane;
    const KeyPlace place = PlaceOfKey(p, at, t, end);
    is_wrong |= place.IsWrong(p);
    const bool is_there = place.IsRight(p);
    float score = -INFINITY;
    if (is_there) {
      const C* k = static_cast<const C*>(p.k) + p.k_steps.At(place.page, g, place.place);
      score = 0;
      for (int d = 0; d < p.D; ++d) score = MulAdd(q[d], WidenCached(k[d]), score);
      score *= p.scale * k_scale;
      if (p.softcap > 0) score = CapOf(score, p.softcap);
      if (p.slopes) score -= p.slopes[h] * fabsf(static_cast<float>(s + keys.offset - t));
      score *= 1.44269504088896340736f;
    }
    float most = score <= max ? max : score;
    for (int by = 16; by > 0; by /= 2) {
      const float other = __shfl_xor_sync(~0u, most, by);
      most = most < other ? other : most;
    }
    const float base = most == -INFINITY ? 0 : most, factor = PowerOfTwo(max - base);
    const float weight = is_there ? PowerOfTwo(score - base) : 0;
    max = most, sum = sum * factor + weight;
#pragma unroll
    for (int i = 0; i < kPlainFeatures / 32; ++i) out[i] *= factor;
    for (unsigned left = __ballot_sync(~0u, is_there); left; left &= left - 1) {
      const int key = __ffs(static_cast<int>(left)) - 1;
      const float share = __shfl_sync(~0u, weight, key);
      const int page = __shfl_sync(~0u, place.page, key),
                in_page = __shfl_sync(~0u, place.place, key);
      const C* v = static_cast<const C*>(p.v) + p.v_steps.At(page, g, in_page);
#pragma unroll
      for (int i = 0; i < kPlainFeatures / 32; ++i)
        if (lane + 32 * i < p.E) out[i] = MulAdd(share, WidenCached(v[lane + 32 * i]), out[i]);
    }
  }
  for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  if (__any_sync(~0u, is_wrong)) max = sum = NAN;
  const float share = EndPagedRow(p, {token, h, 0}, max, sum) * v_scale;
  const PagedTarget<float> target(p, {token, h, 0});
#pragma unroll
  for (int i = 0; i < kPlainFeatures / 32; ++i)
    if (lane + 32 * i < p.E) target.Write(lane + 32 * i, out[i] * share);
}

}  // namespace
}  // namespace anyop::cuda
