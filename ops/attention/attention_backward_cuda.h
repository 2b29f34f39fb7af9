// SPDX-License-Identifier: Apache-2.0
// Gradients of attention, as their CUDA kernels read them: which queries and keys a tile belongs
// to, what a row's weights and slopes come from.
//
// Two kernels, and no number is added up by two blocks, so that the bits are the same each time:
// one goes by tiles of queries over the keys that these see, for grad_q, the other by tiles of keys
// over the queries of all heads of the group that see these, for grad_k and grad_v. Weights are
// made again from lse by both. The first leaves delta = grad_out.out - grad_lse of each query for
// the second, whose last blocks add up grad_sinks.
#pragma once

#include "attention_cuda.h"

namespace anyop::cuda {

struct GradientView {
  AttentionView a;  // as the forward's, with its results; tiles are those of queries
  const void* grad_out;
  const float* grad_lse;
  void *grad_q, *grad_k, *grad_v;  // nullptr: not wanted
  float *grad_sinks, *deltas;      // deltas: batch, head, query
  Steps grad_out_steps, grad_lse_steps, grad_q_steps, grad_k_steps, grad_v_steps;
  int64_t key_items;  // tiles of keys of all groups
  int B, G, key_tiles;
  bool grad_out_aligned;
};

// Queries q to q + S of the tensors, and keys k to k + T: all, or those of a sequence.
struct GradientRange {
  int q, k, S, T, offset, left, right;
  float slope_offset;

  __device__ int First(int s) const { return Within(s + offset - left, T); }
  __device__ int End(int s) const { return Within(s + offset + right + 1, T); }
  // The queries that see key t begin, and end, here.
  __device__ int FirstQuery(int t) const { return Within(t - offset - right, S); }
  __device__ int EndQuery(int t) const { return Within(t - offset + left + 1, S); }

 private:
  __device__ static int Within(int i, int end) { return i < 0 ? 0 : i > end ? end : i; }
};

// A tile of queries of head h, or of keys of group h.
struct GradientPlace {
  GradientRange at;
  int tile, h;
  int64_t b;
};

__device__ inline GradientRange RangeOf(const AttentionView& a) {
  return {0, 0, a.S, a.T, a.offset, a.left, a.right, a.slope_offset};
}
__device__ inline GradientRange RangeOf(const AttentionView& a, int q, int q_end, int k,
                                        int k_end) {
  const int S = q_end - q, T = k_end - k;
  return {q, k, S, T, T - S, a.left, a.right, static_cast<float>(T - S)};
}

// False where the tile has no rows.
template <bool kPacked>
__device__ bool PlaceQueries(const GradientView& p, int64_t item, int rows, GradientPlace* place) {
  const Place of = PlaceOf(p.a, item);
  *place = {RangeOf(p.a), of.tile, of.h, of.b};
  if (!kPacked) return true;
  const SequencePlace at = FindSequence(p.a, of.tile, rows);
  place->at = RangeOf(p.a, at.first, at.end, at.key, at.key + at.keys), place->tile = at.tile;
  return at.HasQueries(rows);
}
// The first keys, which most queries see under a causal bound, come first.
template <bool kPacked, typename Index>
__device__ bool PlaceKeys(const GradientView& p, Index item, int rows, GradientPlace* place) {
  const Index head = item / p.key_tiles;
  const int tile = static_cast<int>(item - head * p.key_tiles);
  const Index b = head / p.G;
  *place = {RangeOf(p.a), tile, static_cast<int>(head - b * p.G), b};
  if (!kPacked) return true;
  const SequencePlace at = FindSequence(p.a.cu_k, p.a.cu_q, p.a.sequences, p.a.T, tile, rows);
  place->at = RangeOf(p.a, at.key, at.key + at.keys, at.first, at.end), place->tile = at.tile;
  return at.HasQueries(rows);
}

// Whether places ascend, where there are any; of all threads of a block.
template <bool kPacked, int kThreads>
__device__ bool HasOrder(const AttentionView& a) {
  return !kPacked || (AreInOrder<kThreads>(a.cu_q, a.sequences, a.S) &&
                      AreInOrder<kThreads>(a.cu_k, a.sequences, a.T));
}

// What wrong places give: NaN, in rows of a tile of the whole.
template <typename T>
__device__ void FillGradientWithNan(void* grad, const Steps& steps, int64_t b, int h, int64_t top,
                                    int64_t end, int width) {
  for (int64_t row = top; grad && row < end; ++row) {
    T* to = static_cast<T*>(grad) + steps.At(b, h, row);
    for (int i = threadIdx.x; i < width; i += blockDim.x) to[i] = Narrow<T>(NAN);
  }
}

__device__ inline float* DeltaOf(const GradientView& p, const GradientPlace& place, int h, int s) {
  return p.deltas + (place.b * p.a.H + h) * p.a.S + place.at.q + s;
}
// lse as a multiple of ln 2; 0 where the query has seen nothing.
__device__ inline float BaseOf(const GradientView& p, const GradientPlace& place, int h, int s) {
  const float lse = p.a.lse[p.a.lse_steps.At(place.b, h, place.at.q + s)];
  return lse == -INFINITY ? 0 : lse * 1.44269504088896340736f;
}

// A warp: delta of query s, in all lanes, kept for the second kernel.
template <typename T>
__device__ float SetDelta(const GradientView& p, const GradientPlace& place, int s) {
  const int64_t row = place.at.q + s;
  const T* grad = static_cast<const T*>(p.grad_out) + p.grad_out_steps.At(place.b, place.h, row);
  const T* out = static_cast<const T*>(p.a.out) + p.a.out_steps.At(place.b, place.h, row);
  const int lane = threadIdx.x % 32;
  float sum = 0;
  for (int e = lane; e < p.a.E; e += 32) sum = MulAdd(Widen(grad[e]), Widen(out[e]), sum);
  for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(~0u, sum, by);
  if (p.grad_lse) sum -= p.grad_lse[p.grad_lse_steps.At(place.b, place.h, row)];
  if (lane == 0) *DeltaOf(p, place, place.h, s) = sum;
  return sum;
}

// A score before its bias, and its slope by scale * q.k.
struct CappedScore {
  float score, slope;
};
__device__ inline CappedScore CapScore(const AttentionView& a, float x) {
  if (!(a.softcap > 0)) return {x, 1};
  const auto cap = static_cast<float>(a.softcap), steep = 2 * 1.44269504088896340736f / cap;
  const float part = 1 - 2 * Reciprocal(PowerOfTwo(x * steep) + 1);  // tanh
  return {cap * part, 1 - part * part};
}
// Its gradient. A weight of 0 has none, whatever the values hold that it hides.
__device__ inline float SlopeOf(float weight, float grad, float delta, float slope) {
  return weight == 0 ? 0 : weight * (grad - delta) * slope;
}

// grad_sinks of head h, by a block.
template <int kThreads>
__device__ void AddSinks(const GradientView& p, int h) {
  __shared__ float sums[kThreads];
  const float sink = p.a.sinks ? p.a.sinks[h] : -INFINITY;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < int64_t{p.B} * p.a.S; i += kThreads) {
    const int64_t b = i / p.a.S, s = i - b * p.a.S;
    const float lse = p.a.lse[p.a.lse_steps.At(b, h, s)];
    const float weight =
        PowerOfTwo((sink - (lse == -INFINITY ? 0 : lse)) * 1.44269504088896340736f);
    if (weight != 0) sum -= weight * p.deltas[(b * p.a.H + h) * p.a.S + s];
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) p.grad_sinks[h] = p.a.sinks ? sums[0] : 0;
}

// A block behind those of keys: a head's grad_sinks.
template <int kThreads>
__device__ void EndWithSinks(const GradientView& p, int64_t item, bool is_ordered) {
  const int64_t h = item - p.key_items;
  if (!p.grad_sinks || h >= p.a.H || blockIdx.z > 0) return;
  if (is_ordered) return AddSinks<kThreads>(p, static_cast<int>(h));
  if (threadIdx.x == 0) p.grad_sinks[h] = NAN;
}
template <typename T>
__device__ void FillKeysWithNan(const GradientView& p, int64_t item, int rows) {
  GradientPlace place;
  PlaceKeys<false>(p, item, rows, &place);
  const int64_t top = int64_t{place.tile} * rows, end = std::min<int64_t>(p.a.T, top + rows);
  FillGradientWithNan<T>(p.grad_k, p.grad_k_steps, 0, place.h, top, end, p.a.D);
  FillGradientWithNan<T>(p.grad_v, p.grad_v_steps, 0, place.h, top, end, p.a.E);
}

}  // namespace anyop::cuda
