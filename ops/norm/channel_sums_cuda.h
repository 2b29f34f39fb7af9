// SPDX-License-Identifier: Apache-2.0
// Two numbers of each channel of a tensor on CUDA, read once in pieces of 16 bytes: its moments, or
// the sums that gradients of a batch norm need. Channels first: the lanes of a warp, or a block,
// for a part of a row of one n and channel. Last: each thread goes along pixels for some channels.
// Parts are joined in an order that depends on the shape and on addresses alone. Sums are float32
// (float64).
#pragma once

#include "channel_planes_cuda.h"

namespace anyop::cuda {
namespace {

constexpr int kChunk = 8;  // elements: a byte of a mask

inline const uint8_t* MaskOf(const AnyopTensor* mask) {
  return mask ? static_cast<const uint8_t*>(mask->data) : nullptr;
}

// Elements [at, at + 8) of `count`; 0 behind the last.
template <typename T>
__device__ Piece<Wide<T>, kChunk> ReadChunk(const T* data, int64_t at, int64_t count,
                                            bool aligned) {
  constexpr int kPer = kPerVector<T>;
  Piece<Wide<T>, kChunk> chunk;
  if (aligned && at + kChunk <= count) {
#pragma unroll
    for (int j = 0; j < kChunk; j += kPer) {
      const Piece<Wide<T>, kPer> some = ReadPiece<kPer>(data + at + j, true);
#pragma unroll
      for (int k = 0; k < kPer; ++k) chunk.at[j + k] = some.at[k];
    }
  } else {
#pragma unroll
    for (int k = 0; k < kChunk; ++k)
      chunk.at[k] = at + k < count ? Widen(data[at + k]) : Wide<T>(0);
  }
  return chunk;
}

template <typename T>
struct ChannelSums {
  using W = Wide<T>;
  const T *x, *grad_out;  // grad_out is NULL: moments
  const uint8_t* mask;
  const W* mean;
  W* sums;  // of each part and channel two
  int64_t C, S, count;
  bool aligned;
};

// What the distances of a channel's elements are from: for moments a number of the channel itself,
// so that they do not cancel.
template <bool kMoments, typename T>
__device__ Wide<T> CenterOf(const ChannelSums<T>& p, int64_t c, int64_t element) {
  if constexpr (!kMoments) return p.mean[c];
  const Wide<T> v = Widen(p.x[element]);
  return v - v == 0 ? v : Wide<T>(0);
}
template <bool kMoments, typename W>
__device__ void AddElement(W v, W d, W center, W& first, W& second) {
  const W far = v - center;
  if constexpr (kMoments) {
    first += far;
    second = MulAdd(far, far, second);
  } else {
    first += d;
    second = MulAdd(d, far, second);
  }
}
template <bool kMoments, typename W>
__device__ void WriteSums(W* to, W center, W count, W first, W second) {
  if constexpr (kMoments) {
    const W far = first / count, rest = second - far * first;
    to[0] = center + far, to[1] = rest < 0 ? W(0) : rest;
  } else {
    to[0] = first, to[1] = second;
  }
}

// ---- channels first ----

constexpr int kRowThreads = 256;

// Parts of rows; `lanes` threads for each: 32, or a block.
struct RowParts {
  int64_t elements, parts;
  int lanes;

  RowParts(int64_t rows, int64_t S) {
    const int64_t most = CeilDiv(S, 8192);
    parts = std::max<int64_t>(std::min(CeilDiv(2048, rows), most), 1);
    elements = CeilDiv(CeilDiv(S, parts), kChunk) * kChunk;
    parts = CeilDiv(S, elements);
    lanes = elements <= 2048 ? 32 : kRowThreads;
  }
};

template <typename T, bool kMoments>
__global__ void __launch_bounds__(kRowThreads)
    SumRowParts(const __grid_constant__ ChannelSums<T> p, const __grid_constant__ RowParts rows) {
  using W = Wide<T>;
  __shared__ Partials<W> partials;
  WaitForWork();
  LetNextStart();
  RowTeam<W> team(rows.lanes, partials);
  const int64_t units = p.count / p.S * rows.parts, of_block = kRowThreads / rows.lanes;
  const int own = static_cast<int>(threadIdx.x) / rows.lanes,
            lane = static_cast<int>(threadIdx.x) % rows.lanes;
  for (int64_t first = blockIdx.x * of_block; first < units; first += gridDim.x * of_block) {
    const int64_t unit = first + own < units ? first + own : units - 1;  // all lanes take part
    const int64_t row = unit / rows.parts, part = unit % rows.parts, c = row % p.C;
    const int64_t begin = row * p.S + part * rows.elements,
                  end = (part + 1) * rows.elements < p.S ? begin + rows.elements : (row + 1) * p.S;
    const W center = CenterOf<kMoments>(p, c, begin);
    W sum = 0, other = 0;
    // Whole chunks of memory, of which the first and the last may be the neighbours' too.
#pragma unroll 2
    for (int64_t chunk = begin / kChunk + lane; chunk * kChunk < end; chunk += rows.lanes) {
      const int64_t at = chunk * kChunk;
      const auto v = ReadChunk(p.x, at, p.count, p.aligned);
      Piece<W, kChunk> d = v;
      unsigned bits = 0xff;
      if constexpr (!kMoments) {
        d = ReadChunk(p.grad_out, at, p.count, p.aligned);
        if (p.mask) bits = p.mask[chunk];
      }
#pragma unroll
      for (int k = 0; k < kChunk; ++k) {
        if (at + k < begin || at + k >= end || !(bits >> k & 1)) continue;
        AddElement<kMoments>(v.at[k], d.at[k], center, sum, other);
      }
    }
    team.Totals(sum, other);
    if (lane > 0 || first + own >= units) continue;
    W* to = p.sums + 2 * ((row / p.C * rows.parts + part) * p.C + c);
    WriteSums<kMoments>(to, center, static_cast<W>(end - begin), sum, other);
  }
}

// ---- channels last ----

constexpr int64_t kSumBlocks = 512;  // few parts are soon joined

template <typename T, int kPer, bool kMoments>
__global__ void __launch_bounds__(kPartThreads)
    SumPixels(const __grid_constant__ ChannelSums<T> p, const __grid_constant__ Parts at) {
  using W = Wide<T>;
  const int64_t c = at.Channel(), part = blockIdx.x, first = at.First(part),
                behind = at.Behind(part);
  WaitForWork();
  LetNextStart();
  W sums[kPer] = {}, others[kPer] = {}, center[kPer] = {};
  if (c < at.C) {
#pragma unroll
    for (int k = 0; k < kPer; ++k) center[k] = CenterOf<kMoments>(p, c + k, first * at.C + c + k);
#pragma unroll 4
    for (int64_t s = first + at.row(); s < behind; s += at.rows) {
      const int64_t element = s * at.C + c;
      const Piece<W, kPer> v = ReadPiece<kPer>(p.x + element, true);
      Piece<W, kPer> d = v;
      unsigned bits = 0xff;
      if constexpr (!kMoments) {
        d = ReadPiece<kPer>(p.grad_out + element, true);
        if (p.mask) bits = p.mask[element / kChunk] >> element % kChunk;
      }
#pragma unroll
      for (int k = 0; k < kPer; ++k) {
        if (bits >> k & 1) AddElement<kMoments>(v.at[k], d.at[k], center[k], sums[k], others[k]);
      }
    }
  }
  AddRows<W, kPer>(at, sums, others);
  if (at.row() > 0 || c >= at.C) return;
#pragma unroll
  for (int k = 0; k < kPer; ++k) {
    W* to = p.sums + 2 * (part * at.C + c + k);
    WriteSums<kMoments>(to, center[k], static_cast<W>(behind - first), sums[k], others[k]);
  }
}

// ---- both ----

// What is to be joined: `parts` of two numbers of each channel. Each `parts_of` of them are of
// `size` elements of a channel together; all but the last of these are of `elements`.
struct SumParts {
  int64_t parts, parts_of, size, elements;
  const void* sums = nullptr;
  __device__ int64_t Elements(int64_t part) const {
    const int64_t own = parts == parts_of ? part : part % parts_of;  // a slow division
    const int64_t left = size - own * elements;
    return left < elements ? left : elements;
  }
};

// 8 channels of a block, 64 threads for each, which get the same sums over all parts.
struct ChannelTeam {
  static constexpr int kThreads = 512, kChannels = 8, kOfChannel = kThreads / kChannels;
  static constexpr int kWarps = kThreads / 32;
  int64_t c, parts;
  int x, y;

  __device__ ChannelTeam(int64_t parts)
      : c(int64_t{blockIdx.x} * kChannels + threadIdx.x % kChannels),
        parts(parts),
        x(threadIdx.x % kChannels),
        y(threadIdx.x / kChannels) {}
  template <typename W, typename Value>
  __device__ W Sum(bool inside, W (&memory)[kWarps][kChannels], const Value& value) const {
    W sum = 0;
    if (inside) {
#pragma unroll 4
      for (int64_t i = y; i < parts; i += kOfChannel) sum += value(i);
    }
#pragma unroll
    for (int step = kChannels; step < 32; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    __syncthreads();
    if (threadIdx.x % 32 < kChannels) memory[threadIdx.x / 32][x] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int i = 0; i < kWarps; ++i) sum += memory[i][x];
    return sum;
  }
  static Launch LaunchFor(int64_t C) {
    return {dim3(static_cast<unsigned>(CeilDiv(C, kChannels))), dim3(kThreads), 0, true};
  }
};

// Fills p.sums. Elements there are.
template <typename T, bool kMoments>
int32_t RunSums(AnyopCall* call, ChannelSums<T> p, bool last, SumParts* found) {
  using W = Wide<T>;
  const auto take = [&](int64_t parts) -> int32_t {
    const int64_t bytes = 2 * parts * p.C * int64_t{sizeof(W)};
    p.sums = static_cast<W*>(call->workspace(call, bytes));
    return p.sums ? kAnyopOk : call->fail(call, kAnyopOutOfMemory, "no memory for the workspace");
  };
  p.aligned = IsAligned(p.x, 16) && IsAligned(p.grad_out, 16);
  if (p.C == 1 || (!last && p.S > 1)) {
    if (p.C == 1) p.S = p.count;
    const int64_t rows = p.count / p.S;
    const RowParts row_parts(rows, p.S);
    *found = {rows / p.C * row_parts.parts, row_parts.parts, p.S, row_parts.elements};
    if (int32_t status = take(found->parts)) return status;
    const int64_t blocks = CeilDiv(rows * row_parts.parts, kRowThreads / row_parts.lanes);
    const Launch launch{dim3(static_cast<unsigned>(std::min<int64_t>(blocks, 0x7fffffff))),
                        dim3(kRowThreads), 0, true};
    if (int32_t status = launch.Run(call, SumRowParts<T, kMoments>, p, row_parts)) return status;
  } else {
    const int64_t pixels = p.count / p.C;
    const int32_t status = WithPieces<T>(p.C, p.aligned, [&](auto per) -> int32_t {
      const Parts parts(1, p.C, pixels, p.C, per, kSumBlocks);
      *found = {parts.parts, parts.parts, pixels, parts.pixels};
      if (int32_t status = take(parts.parts)) return status;
      Launch launch = parts.LaunchFor(1);
      launch.overlaps = true;
      return launch.Run(call, SumPixels<T, per, kMoments>, p, parts);
    });
    if (status) return status;
  }
  found->sums = p.sums;
  return kAnyopOk;
}

}  // namespace
}  // namespace anyop::cuda
