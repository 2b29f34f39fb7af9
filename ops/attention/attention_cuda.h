// SPDX-License-Identifier: Apache-2.0
// Attention as CUDA kernels read it: which keys a query sees, and scores with their options.
#pragma once

#include "anyop/cuda/mma.h"
#include "attention_packed.h"

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
  Steps q_steps, k_steps, v_steps, out_steps, mask_steps, lse_steps;
  int64_t mask_key_step;
  int64_t items;  // tiles of queries of all heads
  double scale, softcap;
  int H, group, S, T, D, E, tiles;
  int offset, left, right;
  float slope_offset;
  MaskKind mask_kind;
  bool q_aligned, k_aligned, v_aligned, out_aligned;  // rows of 16 bytes
  const int32_t *cu_q, *cu_k;  // of packed sequences, else nullptr: where each begins
  int sequences;
  // Of sequences in pages, else nullptr: k and v are (pages, groups, places, features), a row of
  // the table lists a sequence's pages, T is what they hold at most.
  const int32_t *table, *lengths;
  int pages, places, columns, box;  // columns: of the table; box: places that come at once
  int column_step, place_step;      // columns of a tile of keys, and places besides

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
  if (p.lse) view.lse_steps = StepsOf(*p.lse);
  view.q_aligned = HasAlignedRows(*p.q), view.k_aligned = HasAlignedRows(*p.k);
  view.v_aligned = HasAlignedRows(*p.v), view.out_aligned = HasAlignedRows(*p.out);
  return view;
}

// The same of packed sequences, all of them as one. Sequence i begins with tile first / rows + i at
// the earliest, queries before and behind all count as sequences of their own.
template <typename Args>
AttentionView PackedView(const Args& args, const AnyopTensor* lse, int rows) {
  const SequenceProblem all(args, lse, {0, args.S, 0, args.T});
  AttentionView view = ViewOf(all.problem(), rows);
  view.cu_q = static_cast<const int32_t*>(args.cu_seqlens_q->data);
  view.cu_k = static_cast<const int32_t*>(args.cu_seqlens_k->data);
  view.sequences = static_cast<int>(args.B);
  view.tiles = static_cast<int>(args.S / rows + args.B + 2);
  view.items = args.H * view.tiles;
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

// Where sequence i of a packed tensor begins: before the first lie tokens of none, and behind the
// last.
__device__ inline int StartOf(const int32_t* places, int sequences, int tokens, int i) {
  return i == 0 ? 0 : i > sequences + 1 ? tokens : places[i - 1];
}

// Whether places ascend from 0 on and up to the number of tokens; of all threads of a block.
template <int kThreads>
__device__ bool AreInOrder(const int32_t* places, int sequences, int tokens) {
  bool wrong = false;
  for (int i = threadIdx.x; i <= sequences; i += kThreads)
    wrong |= places[i] < (i > 0 ? places[i - 1] : 0) || places[i] > tokens;
  return !__syncthreads_or(wrong);
}

// The sequence in which a tile lies, and the tile's number in it. Places are in order.
struct SequencePlace {
  int first, end, key, keys, tile;
  int number;  // -1: of none
  __device__ bool HasQueries(int rows) const { return first + int64_t{tile} * rows < end; }
};
// starts: where the sequences that are divided into tiles begin; others: the keys of queries, or
// the queries of keys, or nullptr; tokens: of all of them that are divided.
__device__ inline SequencePlace FindSequence(const int32_t* starts, const int32_t* others,
                                             int sequences, int tokens, int tile, int rows) {
  int low = 0, high = sequences + 2;  // the tile lies in sequences low to high - 1
  while (high - low > 1) {
    const int i = (low + high) / 2;
    if (StartOf(starts, sequences, tokens, i) / rows + i <= tile) {
      low = i;
    } else {
      high = i;
    }
  }
  const int first = StartOf(starts, sequences, tokens, low);
  const bool is_one = low > 0 && low <= sequences, has_others = others && is_one;
  const int other = has_others ? others[low - 1] : 0;
  return {first,
          StartOf(starts, sequences, tokens, low + 1),
          other,
          has_others ? others[low] - other : 0,
          tile - first / rows - low,
          is_one ? low - 1 : -1};
}
__device__ inline SequencePlace FindSequence(const AttentionView& p, int tile, int rows) {
  return FindSequence(p.cu_q, p.cu_k, p.sequences, p.S, tile, rows);
}

// Makes the view that of the sequence in which the place's tile lies, and the tile that sequence's
// own; false where there is none.
template <typename T>
__device__ bool EnterSequence(AttentionView* p, Place* place, int rows) {
  const SequencePlace at = FindSequence(*p, place->tile, rows);
  place->tile = at.tile;
  if (!at.HasQueries(rows)) return false;
  p->q = static_cast<const T*>(p->q) + at.first * p->q_steps.row;
  p->k = static_cast<const T*>(p->k) + at.key * p->k_steps.row;
  p->v = static_cast<const T*>(p->v) + at.key * p->v_steps.row;
  p->out = static_cast<T*>(p->out) + at.first * p->out_steps.row;
  if (p->lse) p->lse += at.first * p->lse_steps.row;
  p->S = at.end - at.first, p->T = at.keys;
  p->offset = p->T - p->S;
  p->slope_offset = static_cast<float>(p->offset);
  return true;
}

// What wrong places give: NaN, in the rows of a tile of the whole.
template <typename T, int kThreads>
__device__ void FillWithNan(const AttentionView& p, const Place& place, int rows) {
  const int64_t top = int64_t{place.tile} * rows;
  for (int64_t s = top; s < p.S && s < top + rows; ++s) {
    T* to = static_cast<T*>(p.out) + p.out_steps.At(0, place.h, s);
    for (int e = threadIdx.x; e < p.E; e += kThreads)
      to[e] = Narrow<T>(Wide<T>(INFINITY) - Wide<T>(INFINITY));
    if (p.lse && threadIdx.x == 0) p.lse[p.lse_steps.At(0, place.h, s)] = NAN;
  }
}

// A block's own sequence, in shared memory: as a copy in registers it would not fit.
struct Packed {
  AttentionView view;
  Place place;
  bool is_there;
};

// False where nothing is left to be done; of all threads of a block.
template <typename T, int kThreads>
__device__ bool EnterPacked(const AttentionView& p, int rows, Packed* own) {
  const int64_t item = ItemOf();
  if (item >= p.items) return false;
  if (!AreInOrder<kThreads>(p.cu_q, p.sequences, p.S) ||
      !AreInOrder<kThreads>(p.cu_k, p.sequences, p.T)) {
    FillWithNan<T, kThreads>(p, PlaceOf(p, item), rows);
    return false;
  }
  if (threadIdx.x == 0) {
    own->view = p, own->place = PlaceOf(p, item);
    own->is_there = EnterSequence<T>(&own->view, &own->place, rows);
  }
  __syncthreads();
  return own->is_there;
}

__device__ inline float CapOf(float x, float cap) { return cap * tanhf(x / cap); }
__device__ inline double CapOf(double x, double cap) { return cap * tanh(x / cap); }

// What is added to the score of a query and a key, which exist.
template <typename T, typename W>
__device__ W BiasOf(const AttentionView& view, const Place& place, int s, int t, W slope_offset) {
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
    const W distance = static_cast<W>(s - t) + slope_offset;
    bias -= view.slopes[place.h] * (distance < 0 ? -distance : distance);
  }
  return bias;
}

template <typename T, typename W>
__device__ W BiasOf(const AttentionView& view, const Place& place, int s, int t) {
  return BiasOf<T, W>(view, place, s, t, static_cast<W>(view.slope_offset));
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
    end.max = sink <= max ? max : sink;  // NaN where the sink is
    if (end.max != -W(INFINITY)) {
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
