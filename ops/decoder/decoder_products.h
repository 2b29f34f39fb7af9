// SPDX-License-Identifier: Apache-2.0
// The four products of a decoder's layer, as one stream of weights from memory.
//
// A tile is 8 rows of a weight; a block has every gridDim.x-th. Its warps share the columns, 32
// each at a time, and their sums are added in the order of the warps. A thread copies 16 bytes at a
// time to places of its own, kStages ahead of their use and over the ends of phases: while blocks
// wait for one another, the next phase's weights arrive. Sums are float32; each weight is read
// once.
#pragma once

#include "decoder_view.h"

namespace anyop::cuda {
namespace {

// A thread's 16 bytes of weights, in the order of their use: tile by tile, of each half all steps.
template <typename T>
class WeightStream {
 public:
  __device__ explicit WeightStream(const LayerView<T>& p) : p_(p) {
    FindRows();
#pragma unroll 1
    for (int i = 0; i < kStages; ++i) Copy();
  }
  __device__ void Next(uint32_t (&words)[4]) {
    WaitForCopies<kStages - 1>();
    LoadShared(words, Place());
    Copy();  // to where these were
  }

 private:
  __device__ uint32_t Place() const {
    return DynamicSharedAddress() + 16 * (threadIdx.x + stage_ * kLayerThreads);
  }
  __device__ void Copy() {
    if (steps_ > 0) {
      const uint32_t to = Place();
      if (p_.aligned_weights) {
        CopyAside(to, left_ > 0 ? from_ : p_.weights[0].data, left_ > 0);
      } else {
        const auto* halves = reinterpret_cast<const uint16_t*>(from_);
#pragma unroll 1
        for (int i = 0; i < 8; i += 2)
          StoreSharedWord(to + 2 * i, left_ > 0 ? halves[i] | uint32_t{halves[i + 1]} << 16 : 0);
      }
      from_ += kStepColumns, left_ -= kStepColumns;
      if (--steps_ == 0) {
        const int half = unit_ % 2 + 1;
        unit_ += half < p_.weights[phase_].halves ? 1 : 2 * static_cast<int>(gridDim.x) + 1 - half;
        FindRows();
      }
    }
    CommitCopies();
    stage_ = stage_ + 1 == kStages ? 0 : stage_ + 1;
  }
  // The row of this thread in a half of a tile, in the next phase of which this block has one.
  __device__ void FindRows() {
    while (unit_ >= 2 * p_.weights[phase_].Tiles()) {
      if (++phase_ == kPhases) return;
      unit_ = 2 * static_cast<int>(blockIdx.x);
    }
    const Weights<T>& of = p_.weights[phase_];
    const int lane = threadIdx.x % 32, row = unit_ / 2 * kTileRows + lane / 4;
    const int column = static_cast<int>(threadIdx.x) / 32 * 32 + lane % 4 * 8;
    from_ = of.data + (int64_t{unit_ % 2} * of.rows + row) * of.columns + column;
    left_ = row < of.rows ? of.columns - column : 0;
    steps_ = of.Steps();
  }

  const LayerView<T>& p_;
  const T* from_ = nullptr;
  int phase_ = 0, stage_ = 0, unit_ = 2 * static_cast<int>(blockIdx.x);  // tile, half
  int steps_ = 0, left_ = 0;  // of the row; columns from here on
};

// finish(token, row, its sums of each half), for this block's rows of a phase; rows: what is
// multiplied, (B, columns), so far apart.
template <int kHalves, typename T, typename Finish>
__device__ __forceinline__ void Multiply(const LayerView<T>& p, Phase phase,
                                         WeightStream<T>& stream, const T* rows, int apart,
                                         const Finish& finish) {
  const Weights<T>& of = p.weights[phase];
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32;
  const int first = warp * 32 + lane % 4 * 8;  // column
  const T* mine = rows + int64_t{std::min(lane / 4, p.B - 1)} * apart;
  int turn = 0;
#pragma unroll 1
  for (int tile = blockIdx.x; tile < of.Tiles(); tile += gridDim.x, turn ^= 1) {
    float* sums = SharedSums() + turn * (kLayerWarps * 2 * 64);
#pragma unroll
    for (int half = 0; half < kHalves; ++half) {
      float d[4] = {};
#pragma unroll 2
      for (int column = first, i = 0; i < of.Steps(); ++i, column += kStepColumns) {
        uint32_t weights[4];
        stream.Next(weights);
        AddProducts<T>(d, column < of.columns ? LoadAt(mine + column, true) : uint4{}, weights);
      }
      *reinterpret_cast<float2*>(sums + (warp * kHalves + half) * 64 + lane * 2) =
          make_float2(d[0], d[1]);
    }
    __syncthreads();  // and whoever reads the sums of the tile before has done so
    const int token = static_cast<int>(threadIdx.x) / 8;
    const int row = tile * kTileRows + static_cast<int>(threadIdx.x) % 8;
    if (token >= p.B || row >= of.rows) continue;
    float total[kHalves] = {};
#pragma unroll
    for (int w = 0; w < kLayerWarps; ++w)
#pragma unroll
      for (int half = 0; half < kHalves; ++half)
        total[half] += sums[(w * kHalves + half) * 64 + threadIdx.x];
    finish(token, row, total);
  }
}

// x + delta + added of all tokens, normalised, to shared memory; the first block writes the sum to
// `to`. Warps share a token.
template <typename T>
__device__ __forceinline__ void Normalize(const LayerView<T>& p, const T* weight,
                                          const float* added, T* to) {
  const int warp = static_cast<int>(threadIdx.x) / 32, vectors = p.D / 8;
  int share = kLayerWarps;
  for (int n = 1; n < p.B; n *= 2) share /= 2;
  const int token = warp / share, first = static_cast<int>(threadIdx.x) - token * share * 32;
  T* rows = SharedRows<T>() + token * (p.D + kRowPad);
  float* numbers = SharedNumbers();
  uint4 factors = {};
  float squares = 0;
  if (token < p.B) {
    if (first < vectors) factors = LoadAt(weight + 8 * first, p.aligned_rows);
#pragma unroll 1
    for (int i = first; i < vectors; i += share * 32) {
      const int64_t at = int64_t{token} * p.D + 8 * i;
      uint4 bits = LoadAt(p.x + at, p.aligned_rows);
      Unpacked<T> v = Unpack<T>(bits);
      if (p.delta) {
        const Unpacked<T> more = Unpack<T>(LoadAt(p.delta + at, p.aligned_rows));
#pragma unroll
        for (int k = 0; k < 8; ++k) v.at[k] += more[k];
        bits = Pack<T>(v), v = Unpack<T>(bits);
      }
      if (added) {
        const float4 low = *reinterpret_cast<const float4*>(added + at);
        const float4 high = *reinterpret_cast<const float4*>(added + at + 4);
        const float more[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int k = 0; k < 8; ++k) v.at[k] += more[k];
        bits = Pack<T>(v), v = Unpack<T>(bits);
      }
      if (to && blockIdx.x == 0) StoreAt(to + at, p.aligned_rows, bits);
      StoreAt(rows + 8 * i, true, bits);
#pragma unroll
      for (int k = 0; k < 8; ++k) squares = MulAdd(v[k], v[k], squares);
    }
  }
  squares = SumOfWarp(squares);
  if (threadIdx.x % 32 == 0) numbers[warp] = squares;
  __syncthreads();
  if (token < p.B) {
    float total = 0;
    for (int w = 0; w < share; ++w) total += numbers[token * share + w];
    const float scale = ReciprocalRoot(total / static_cast<float>(p.D) + p.eps);
#pragma unroll 1
    for (int i = first; i < vectors; i += share * 32) {
      Unpacked<T> v = Unpack<T>(LoadAt(rows + 8 * i, true));
      const Unpacked<T> w =
          Unpack<T>(i == first ? factors : LoadAt(weight + 8 * i, p.aligned_rows));
#pragma unroll
      for (int k = 0; k < 8; ++k) v.at[k] = v[k] * scale * w[k];
      StoreAt(rows + 8 * i, true, Pack<T>(v));
    }
  }
  __syncthreads();
}

// Rows that a product reads: in shared memory where there is room, else where they are.
template <typename T>
struct BroughtRows {
  const T* data;
  int apart;
  __device__ BroughtRows(const LayerView<T>& p, const T* from, int columns)
      : data(from), apart(columns) {
    if (int64_t{p.B} * (columns + kRowPad) > p.room) return;
    apart = columns + kRowPad;
    T* rows = SharedRows<T>();
    for (int b = 0; b < p.B; ++b)
      for (int i = 8 * static_cast<int>(threadIdx.x); i < columns; i += 8 * kLayerThreads)
        StoreAt(rows + b * apart + i, true, LoadAt(from + int64_t{b} * columns + i, true));
    data = rows;
    __syncthreads();
  }
};

}  // namespace
}  // namespace anyop::cuda
