// SPDX-License-Identifier: Apache-2.0
// Gradients of attention on Hopper: what comes before the products of matrices, delta of each
// query, and behind them, grad_q in its own dtype and grad_sinks.
#pragma once

#include "attention_backward_sm90_tile.h"

namespace anyop::cuda {
namespace {

constexpr int kEndThreads = 256;

// Tile `number` of all, head by head; false where it has no queries.
template <int kQueries>
__device__ bool PlaceOfNumber(const GradientView& p, int64_t number, GradientPlace* place) {
  const int64_t head = number / p.a.tiles, b = head / p.a.H;
  const int tile = static_cast<int>(number - head * p.a.tiles);
  *place = {RangeOf(p.a), tile, static_cast<int>(head - b * p.a.H), b};
  if (!p.a.cu_q) return true;
  const SequencePlace at = FindSequence(p.a, tile, kQueries);
  place->at = RangeOf(p.a, at.first, at.end, at.key, at.key + at.keys), place->tile = at.tile;
  return at.HasQueries(kQueries);
}
__device__ inline bool IsOrdered(const AttentionView& a) {
  return !a.cu_q || HasOrder<true, kEndThreads>(a);
}

// A block: a tile of 64 queries, 16 at a time by 16 lanes each, which read rows of 16 bytes a lane.
template <typename T>
__global__ __launch_bounds__(kEndThreads) void PrepareGradient(
    const __grid_constant__ GradientView p, const __grid_constant__ HopperGradientMemory m) {
  constexpr int kQueries = 64, kPer = 8;
  LetNextStart();
  const int64_t number = ItemOf();
  if (number >= p.a.items) return;
  if (threadIdx.x == 0) {
    m.turns[number] = 0;
    if (number == 0) *m.next = 0;
  }
  for (int64_t i = number * kEndThreads + threadIdx.x; i < p.key_items;
       i += p.a.items * kEndThreads)
    m.done[i] = 0;
  GradientPlace place;
  const bool is_there = IsOrdered(p.a) && PlaceOfNumber<kQueries>(p, number, &place);
  const int lane = threadIdx.x % 16;
  float sums[kQueries / 16] = {};
  uint4 grads[kQueries / 16], outs[kQueries / 16];
#pragma unroll
  for (int i = 0; i < kQueries / 16; ++i) {
    const int s = place.tile * kQueries + 16 * i + static_cast<int>(threadIdx.x) / 16;
    grads[i] = outs[i] = {};
    if (!is_there || s >= place.at.S || kPer * lane >= p.a.E) continue;
    const int64_t row = place.at.q + s;
    const T* grad = static_cast<const T*>(p.grad_out) + p.grad_out_steps.At(place.b, place.h, row);
    const T* out = static_cast<const T*>(p.a.out) + p.a.out_steps.At(place.b, place.h, row);
    grads[i] = *reinterpret_cast<const uint4*>(grad + kPer * lane);
    outs[i] = *reinterpret_cast<const uint4*>(out + kPer * lane);
  }
#pragma unroll
  for (int i = 0; i < kQueries / 16; ++i) {
    const uint32_t a[4] = {grads[i].x, grads[i].y, grads[i].z, grads[i].w};
    const uint32_t b[4] = {outs[i].x, outs[i].y, outs[i].z, outs[i].w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      sums[i] = MulAdd(WidenLow(T(), a[w]), WidenLow(T(), b[w]), sums[i]);
      sums[i] = MulAdd(WidenHigh(T(), a[w]), WidenHigh(T(), b[w]), sums[i]);
    }
    for (int by = 8; by > 0; by /= 2) sums[i] += __shfl_xor_sync(~0u, sums[i], by);
    const int r = 16 * i + static_cast<int>(threadIdx.x) / 16, s = place.tile * kQueries + r;
    if (lane > 0) continue;
    float base = INFINITY, delta = 0;
    if (is_there && s < place.at.S) {
      const int64_t row = place.at.q + s;
      const float lse = p.a.lse[p.a.lse_steps.At(place.b, place.h, row)];
      delta = sums[i];
      if (p.grad_lse) delta -= p.grad_lse[p.grad_lse_steps.At(place.b, place.h, row)];
      if (lse != -INFINITY) base = lse * 1.44269504088896340736f;
    }
    m.bases[number * kQueries + r] = base, m.deltas[number * kQueries + r] = delta;
  }
}

// grad_sinks of head h, by a block.
__device__ inline void AddSinksOf(const GradientView& p, const HopperGradientMemory& m, int h) {
  __shared__ float sums[kEndThreads];
  const float sink = (p.a.sinks ? p.a.sinks[h] : -INFINITY) * 1.44269504088896340736f;
  const int64_t each = int64_t{p.a.tiles} * 64;
  float sum = 0;
  for (int64_t i = threadIdx.x; i < p.B * each; i += kEndThreads) {
    const int64_t b = i / each, at = (b * p.a.H + h) * each + i - b * each;
    const float weight = PowerOfTwo(sink - m.bases[at]);
    if (weight != 0) sum -= weight * m.deltas[at];
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int half = kEndThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) p.grad_sinks[h] = p.a.sinks ? sums[0] : 0;
}

// grad_q of a tile.
template <typename T, typename Tile>
__device__ void WriteQueries(const GradientView& p, const HopperGradientMemory& m, int64_t number) {
  constexpr int kQueries = Tile::kQueries;
  GradientPlace place;
  if (!PlaceOfNumber<kQueries>(p, number, &place)) return;
  const int thread = threadIdx.x % 128, group = static_cast<int>(threadIdx.x) / 128;
  const int top = place.tile * kQueries, last = min(top + kQueries, place.at.S) - 1;
  const int first = place.at.First(top), end = place.at.End(last);
  const bool sees = end > first;
  if (sees && threadIdx.x == 0)
    WaitForTurn(m.turns + number, (end - 1) / Tile::kKeys - first / Tile::kKeys + 1);
  __syncthreads();
  float wide[Tile::kOwn / 2], more[Tile::kOwnMore > 0 ? Tile::kOwnMore / 2 : 16];
  const float4* from = reinterpret_cast<const float4*>(m.sums + number * kQueries * Tile::kD) +
                       group * (Tile::kD / 16) * 128 + thread;
  const auto read = [&](float* to, int at) {
    const float4 four = sees ? __ldcg(from + at * 128) : float4{};
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
  };
#pragma unroll
  for (int i = 0; i < Tile::kOwn / 8; ++i) read(wide + 4 * i, i);
#pragma unroll
  for (int i = 0; i < Tile::kOwnMore / 8; ++i) read(more + 4 * i, Tile::kOwn / 8 + i);
  const auto scale = static_cast<float>(p.a.scale);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int s = top + thread / 32 * 16 + thread % 32 / 4 + 8 * half, column = group * Tile::kOwn;
    const bool is_there = s < place.at.S;
    T* to = static_cast<T*>(p.grad_q);
    if (is_there) to += p.grad_q_steps.At(place.b, place.h, place.at.q + s);
    WriteRow(wide, is_there ? to + column : nullptr, half, scale, p.a.D - column);
    if constexpr (Tile::kMore > 0) {
      const int behind = Tile::kWide + group * Tile::kOwnMore;
      WriteRow(more, is_there ? to + behind : nullptr, half, scale, p.a.D - behind);
    }
  }
}

// Tile `number` of queries in the order in which items are drawn.
__device__ inline int64_t NumberInOrder(const GradientView& p, const HopperGradientOrder& order,
                                        int64_t number) {
  const int64_t each = int64_t{order.heads} * p.a.tiles, group = number / each;
  const int64_t in = number - group * each, part = group / order.groups;
  return ((group - part * order.groups) * p.a.group + part * order.heads) * p.a.tiles + in;
}

// A block: a tile of queries, or behind those a head's grad_sinks. Blocks start where the products'
// blocks have ended and wait for their own tile alone.
template <typename T, typename Tile>
__global__ __launch_bounds__(kEndThreads) void EndGradient(
    const __grid_constant__ GradientView p, const __grid_constant__ HopperGradientMemory m,
    const __grid_constant__ HopperGradientOrder order) {
  const int64_t item = ItemOf();
  const bool is_ordered = IsOrdered(p.a);
  if (item < p.a.items) {
    const int64_t number = NumberInOrder(p, order, item);
    if (p.grad_q && is_ordered) WriteQueries<T, Tile>(p, m, number);
    if (p.grad_q && !is_ordered) {
      const int64_t h = number / p.a.tiles, top = (number - h * p.a.tiles) * Tile::kQueries;
      FillGradientWithNan<T>(p.grad_q, p.grad_q_steps, 0, static_cast<int>(h), top,
                             std::min<int64_t>(p.a.S, top + Tile::kQueries), p.a.D);
    }
  } else if (p.grad_sinks && item < p.a.items + p.a.H) {
    const int h = static_cast<int>(item - p.a.items);
    if (is_ordered) AddSinksOf(p, m, h);
    if (!is_ordered && threadIdx.x == 0) p.grad_sinks[h] = NAN;
  }
  if (item == 0) WaitForWork();  // who comes next may read all results
}

}  // namespace
}  // namespace anyop::cuda
