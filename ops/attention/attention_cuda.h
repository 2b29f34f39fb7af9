// SPDX-License-Identifier: Apache-2.0
// Attention as CUDA kernels read it: which keys a query sees, and scores with their options.
#pragma once

#include "anyop/cuda_mma.h"
#include "attention_problem.h"

namespace anyop::cuda {

enum class MaskKind { kNone, kBool, kFloat32, kOfQueries };

// Elements between batches, heads and rows.
struct Steps {
  int64_t batch, head, row;
  __host__ __device__ int64_t At(int64_t b, int64_t h, int64_t i) const {
    return b * batch + h * head + i * row;
  }
};

struct AttentionView {
  // Most queries, and most keys, that 32 bits can count with any offset and window.
  static constexpr int64_t kMost = 1 << 28;
  const void *q, *k, *v, *mask;
  void* out;
  float* lse;  // nullptr: not wanted
  const float *sinks, *slopes;
  Steps q_steps, k_steps, v_steps, out_steps, mask_steps;
  int64_t mask_key_step;
  int64_t items;  // tiles of queries of all heads
  double scale, softcap;
  int H, group, S, T, D, E, tiles;
  int offset, left, right;
  float slope_offset;
  MaskKind mask_kind;
  bool q_aligned, k_aligned, v_aligned, out_aligned;  // rows of 16 bytes

  __device__ int First(int s) const { return Within(s + offset - left); }
  __device__ int End(int s) const { return Within(s + offset + right + 1); }
  // The last of some queries.
  __device__ int Last(int s, int rows) const { return s + rows < S ? s + rows - 1 : S - 1; }
  __device__ bool IsPlain() const {
    return softcap == 0 && !slopes && mask_kind == MaskKind::kNone;
  }

 private:
  __device__ int Within(int t) const { return t < 0 ? 0 : t > T ? T : t; }
};

inline Steps StepsOf(const AnyopTensor& x) { return {x.strides[0], x.strides[1], x.strides[2]}; }

// Whether all rows of D elements lie as 16 bytes and their multiples.
inline bool HasAlignedRows(const AnyopTensor& x) {
  const int64_t per = 128 / x.dtype_bits;
  bool aligned = IsAligned(static_cast<const char*>(x.data), 16) && x.shape[3] % per == 0;
  for (int d = 0; d < 3; ++d) aligned &= x.strides[d] % per == 0 || x.shape[d] <= 1;
  return aligned;
}

inline AttentionView ViewOf(const AttentionProblem& p, int rows) {
  AttentionView view = {};
  view.q = p.q->data, view.k = p.k->data, view.v = p.v->data, view.out = p.out->data;
  view.lse = p.lse ? static_cast<float*>(p.lse->data) : nullptr;
  view.sinks = p.sinks ? static_cast<const float*>(p.sinks->data) : nullptr;
  view.slopes = p.slopes ? static_cast<const float*>(p.slopes->data) : nullptr;
  view.q_steps = StepsOf(*p.q), view.k_steps = StepsOf(*p.k);
  view.v_steps = StepsOf(*p.v), view.out_steps = StepsOf(*p.out);
  if (p.mask) {
    view.mask = p.mask->data;
    view.mask_steps = StepsOf(*p.mask);
    view.mask_key_step = p.mask->strides[3];
    view.mask_kind = p.mask->dtype_bits == 8                 ? MaskKind::kBool
                     : AnyopDtypeOf(p.mask) == kAnyopFloat32 ? MaskKind::kFloat32
                                                             : MaskKind::kOfQueries;
  }
  view.H = static_cast<int>(p.H), view.group = static_cast<int>(p.H / p.G);
  view.S = static_cast<int>(p.S), view.T = static_cast<int>(p.T);
  view.D = static_cast<int>(p.D), view.E = static_cast<int>(p.E);
  view.tiles = static_cast<int>(CeilDiv(p.S, rows));
  view.items = p.B * p.H * view.tiles;
  view.scale = p.scale, view.softcap = p.softcap;
  // Sums of a query, an offset and a window stay below 2^31.
  view.offset = static_cast<int>(std::clamp<int64_t>(p.window.offset, -(1 << 29), 1 << 29));
  view.left = static_cast<int>(std::min<int64_t>(p.window.left, 1 << 30));
  view.right = static_cast<int>(std::min<int64_t>(p.window.right, 1 << 30));
  view.slope_offset = static_cast<float>(p.window.offset);
  view.q_aligned = HasAlignedRows(*p.q), view.k_aligned = HasAlignedRows(*p.k);
  view.v_aligned = HasAlignedRows(*p.v), view.out_aligned = HasAlignedRows(*p.out);
  return view;
}

// A block for each item; ItemOf is its number.
constexpr int64_t kMostColumns = INT32_MAX;
inline dim3 GridOf(const AttentionView& view) {
  return dim3(static_cast<unsigned>(std::min(view.items, kMostColumns)),
              static_cast<unsigned>(CeilDiv(view.items, kMostColumns)));
}
__device__ inline int64_t ItemOf() { return blockIdx.x + kMostColumns * blockIdx.y; }

// One tile of queries of one head; the last queries, which see most keys under a causal bound,
// first.
struct Place {
  int tile, h;
  int64_t b;
};
__device__ inline Place PlaceOf(const AttentionView& view, int64_t item) {
  const int64_t head = item / view.tiles;
  const int tile = static_cast<int>(item - head * view.tiles);
  const int64_t b = head / view.H;
  return {view.tiles - 1 - tile, static_cast<int>(head - b * view.H), b};
}

__device__ inline float CapOf(float x, float cap) { return cap * tanhf(x / cap); }
__device__ inline double CapOf(double x, double cap) { return cap * tanh(x / cap); }

// What is added to the score of a query and a key, which exist.
template <typename T, typename W>
__device__ W BiasOf(const AttentionView& view, const Place& place, int s, int t) {
  W bias = 0;
  if (view.mask_kind != MaskKind::kNone) {
    const int64_t at = view.mask_steps.At(place.b, place.h, s) + t * view.mask_key_step;
    if (view.mask_kind == MaskKind::kBool) {
      bias = static_cast<const uint8_t*>(view.mask)[at] ? W(0) : -W(INFINITY);
    } else if (view.mask_kind == MaskKind::kFloat32) {
      bias = static_cast<const float*>(view.mask)[at];
    } else {
      bias = Widen(static_cast<const T*>(view.mask)[at]);
    }
  }
  if (view.slopes) {
    const W distance = static_cast<W>(s - t) + static_cast<W>(view.slope_offset);
    bias -= view.slopes[place.h] * (distance < 0 ? -distance : distance);
  }
  return bias;
}

// A row's greatest score and the sum of its weights, as multiples of ln 2, with a sink's; what its
// weighted values are to be multiplied by.
template <typename W>
struct RowEnd {
  W max, sum, share;
};
template <typename W>
__device__ RowEnd<W> EndRow(const AttentionView& view, int h, W max, W sum) {
  RowEnd<W> end = {max, sum, 1};
  if (view.sinks) {
    const W sink = static_cast<W>(view.sinks[h]) * static_cast<W>(1.44269504088896340736);
    end.max = max < sink ? sink : max;
    if (end.max > -W(INFINITY)) {
      end.share = PowerOfTwo(max - end.max);
      end.sum = sum * end.share + PowerOfTwo(sink - end.max);
    }
  }
  end.share = sum == 0 ? W(0) : end.share / end.sum;
  return end;
}
__device__ inline float LogOf(const RowEnd<float>& end) {
  return (end.max + log2f(end.sum)) * 0.69314718055994530942f;
}
__device__ inline float LogOf(const RowEnd<double>& end) {
  return static_cast<float>((end.max + log2(end.sum)) * 0.69314718055994530942);
}

}  // namespace anyop::cuda
