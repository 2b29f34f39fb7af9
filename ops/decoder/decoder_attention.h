// SPDX-License-Identifier: Apache-2.0
// Attention of one new token of each sequence in the layer's kernel: a block has the heads of a
// group and a part of the keys. Each warp takes 8 keys at a time, multiplies them on tensor cores
// with all heads, and adds up values in registers, float32. Warps are joined in their order, and
// parts by the block that comes last, in theirs. Keys and values are read once.
#pragma once

#include "decoder_view.h"

namespace anyop::cuda {
namespace {

// What a block of attention has.
struct KeyPart {
  int b, g, part, count;  // count: parts with keys
  int length, begin, end;
  bool is_wrong;  // the length: out is NaN

  template <typename T>
  __device__ KeyPart(const LayerView<T>& p, int item) {
    part = item % p.most_parts, g = item / p.most_parts % p.G, b = item / p.most_parts / p.G;
    length = p.lengths[b];
    is_wrong = length < 0 || length > p.M * p.P;
    if (is_wrong) length = 0;
    constexpr int kFewest = 64;  // keys of a part: fewer take as long
    const int each = std::max((length + 8 * p.most_parts - 1) / (8 * p.most_parts) * 8, kFewest);
    count = std::max((length + each - 1) / each, 1);
    begin = std::min(part * each, length), end = std::min(begin + each, length);
  }
  // A key's page, below 0 where there is none.
  template <typename T>
  __device__ int PageOf(const LayerView<T>& p, int t) const {
    const int page = p.table[int64_t{b} * p.M + t / p.P];
    return page < p.N ? page : -1;
  }
};
template <typename T>
__device__ int64_t PlaceIn(const Cache<T>& cache, int page, int place, int g) {
  return page * cache.page_step + place * cache.place_step + g * cache.head_step;
}

// Shared memory of a block, behind the ring.
template <typename T, int C>
struct AttentionRoom {
  T queries[kMostTokens][C + kRowPad];
  float weights[kLayerWarps][kMostTokens][8];  // heads, keys
  float most[kLayerWarps][kMostTokens], total[kLayerWarps][kMostTokens];
  unsigned before;  // parts that were there
  float out[1];     // [kLayerWarps][group * C]

  static int Bytes(int group) {
    return static_cast<int>(sizeof(AttentionRoom)) + kLayerWarps * group * C * 4;
  }
};

// A head of queries or of a key, normalised and turned, by a warp.
template <int C, typename T>
__device__ void TurnHead(const LayerView<T>& p, const float* from, const T* norm, int position,
                         T* to) {
  constexpr int kHalf = C / 2, kPairs = kHalf / 32;
  const int lane = threadIdx.x % 32;
  float v[kPairs][2], squares = 0;
#pragma unroll
  for (int i = 0; i < kPairs; ++i)
#pragma unroll
    for (int s = 0; s < 2; ++s) {
      v[i][s] = from[lane + 32 * i + kHalf * s];
      squares = MulAdd(v[i][s], v[i][s], squares);
    }
  const float scale = norm ? ReciprocalRoot(SumOfWarp(squares) / static_cast<float>(C) + p.eps) : 1;
  const auto in_table = [&](const void* table, int c) {
    const int64_t i = int64_t{position} * C + c;
    return p.is_wide_table ? static_cast<const float*>(table)[i]
                           : Widen(static_cast<const T*>(table)[i]);
  };
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int c = lane + 32 * i, other = c + kHalf;
    const float first = v[i][0] * scale * (norm ? Widen(norm[c]) : 1);
    const float second = v[i][1] * scale * (norm ? Widen(norm[other]) : 1);
    to[c] = Narrow<T>(first * in_table(p.cos, c) - second * in_table(p.sin, c));
    to[other] = Narrow<T>(second * in_table(p.cos, other) + first * in_table(p.sin, other));
  }
}

// The queries of a group to shared memory; the newest key and value to the cache, by the block that
// attends to them.
template <int C, typename T>
__device__ void BringHeads(const LayerView<T>& p, const KeyPart& at, AttentionRoom<T, C>& room) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32;
  const int newest = at.length - 1, position = std::min(newest, p.L - 1);
  const float* heads = p.heads + int64_t{at.b} * (p.H + 2 * p.G) * C;
  if (warp < p.group)
    TurnHead<C>(p, heads + (at.g * p.group + warp) * C, p.q_norm, position, room.queries[warp]);
  const int page = at.part == at.count - 1 ? at.PageOf(p, newest) : -1;
  if (page < 0) return;
  if (warp == kLayerWarps - 1)
    TurnHead<C>(p, heads + (p.H + at.g) * C, p.k_norm, position,
                p.keys.data + PlaceIn(p.keys, page, newest % p.P, at.g));
  if (warp == kLayerWarps - 2)
    for (int c = lane; c < C; c += 32)
      p.values.data[PlaceIn(p.values, page, newest % p.P, at.g) + c] =
          Narrow<T>(heads[(p.H + p.G + at.g) * C + c]);
}

// This warp's keys of a part: its greatest scores, sums of weights and of weighted values.
template <int C, typename T>
__device__ __forceinline__ void AttendInWarp(const LayerView<T>& p, const KeyPart& at,
                                             AttentionRoom<T, C>& room) {
  constexpr int kSteps = C / 32, kOwn = C / 32;  // features of a value that a lane adds up
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = threadIdx.x % 32;
  const T* queries = room.queries[std::min(lane / 4, p.group - 1)] + lane % 4 * 8;
  float most = -INFINITY, total = 0, out[kMostTokens][kOwn] = {};  // of head lane / 4; of all
#pragma unroll 1
  for (int first = at.begin + 8 * warp; first < at.end; first += 8 * kLayerWarps) {
    const int t = first + lane / 4;
    const int page = t < at.end ? at.PageOf(p, t) : -1;
    const unsigned there = __ballot_sync(~0u, page >= 0);  // four bits a key
    const T* k = p.keys.data + PlaceIn(p.keys, page, t % p.P, at.g) + lane % 4 * 8;
    const int64_t v_at = PlaceIn(p.values, page, t % p.P, at.g);
    uint4 key[kSteps];
#pragma unroll
    for (int j = 0; j < kSteps; ++j)
      key[j] = page < 0 ? uint4{} : LoadAt(k + 32 * j, p.aligned_heads);
    Vector<T, kOwn> value[8] = {};
    const auto value_of = [&](int i) {
      return p.values.data + __shfl_sync(~0u, v_at, 4 * i) + kOwn * lane;
    };
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const T* from = value_of(i);
      if (!(there >> 4 * i & 1)) continue;
      if (p.aligned_heads) {
        value[i] = *reinterpret_cast<const Vector<T, kOwn>*>(from);
      } else {
#pragma unroll
        for (int c = 0; c < kOwn; ++c) value[i].at[c] = from[c];
      }
    }
    float d[4] = {};
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      const uint32_t words[4] = {key[j].x, key[j].y, key[j].z, key[j].w};
      AddProducts<T>(d, LoadAt(queries + 32 * j, true), words);
    }
    float score[2], top = most;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int i = lane % 4 * 2 + c;
      score[c] = first + i >= at.end ? -INFINITY : there >> 4 * i & 1 ? d[c] * p.scale : NAN;
      top = fmaxf(top, score[c]);
    }
    for (int by = 1; by <= 2; by *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, by));
    const float base = top == -INFINITY ? 0 : top, kept = PowerOfTwo(most - base);
    const float2 weight = make_float2(PowerOfTwo(score[0] - base), PowerOfTwo(score[1] - base));
    most = top, total = total * kept + weight.x + weight.y;
    __syncwarp();  // all have read the weights of the keys before
    *reinterpret_cast<float2*>(&room.weights[warp][lane / 4][lane % 4 * 2]) = weight;
    __syncwarp();
#pragma unroll
    for (int h = 0; h < kMostTokens; ++h) {
      if (h >= p.group) break;
      const float still = __shfl_sync(~0u, kept, 4 * h);
      const float* of = room.weights[warp][h];
#pragma unroll
      for (int c = 0; c < kOwn; ++c) {
        float sum = out[h][c] * still;
#pragma unroll
        for (int i = 0; i < 8; ++i) sum = MulAdd(of[i], Widen(value[i].at[c]), sum);
        out[h][c] = sum;
      }
    }
  }
  for (int by = 1; by <= 2; by *= 2) total += __shfl_xor_sync(~0u, total, by);
  if (lane % 4 == 0) room.most[warp][lane / 4] = most, room.total[warp][lane / 4] = total;
#pragma unroll
  for (int h = 0; h < kMostTokens; ++h) {
    if (h >= p.group) break;
#pragma unroll
    for (int c = 0; c < kOwn; ++c) room.out[(warp * p.group + h) * C + kOwn * lane + c] = out[h][c];
  }
}

constexpr int kAhead = 8;  // parts of which the last block has the results on their way

// Sums of weights and of weighted values under one greatest score: add(most, total, value) each.
struct JoinedSums {
  float most = -INFINITY, total = 0, value = 0;
  __device__ void Add(float top, float sum, float v) {
    if (sum == 0) return;  // none: NaN is some
    const float next = fmaxf(most, top);
    const float old = PowerOfTwo(most - next), own = PowerOfTwo(top - next);
    most = next, total = total * old + sum * own, value = value * old + v * own;
  }
};

// What a block is to read of tables and of the caches is fetched into the second cache, but for the
// newest key and value, which are not there yet: while products wait for weights.
template <int C, typename T>
__device__ __forceinline__ void FetchKeys(const LayerView<T>& p) {
  const int item = blockIdx.x;
  if (item >= p.B * p.G * p.most_parts) return;
  const KeyPart at(p, item);
  if (at.part >= at.count) return;
  constexpr int kLines = C * 2 / 128, kEach = 2 * kLines;  // of a key and its value
  for (int i = threadIdx.x; i < (at.end - at.begin) * kEach; i += kLayerThreads) {
    const int t = at.begin + i / kEach, line = i % kLines;
    const int page = at.PageOf(p, t);
    if (page < 0) continue;
    const Cache<T>& cache = i / kLines % 2 ? p.values : p.keys;
    FetchIntoSecondCache(cache.data + PlaceIn(cache, page, t % p.P, at.g) + 64 * line);
  }
}

template <int C, typename T>
__device__ T* Attended(const LayerView<T>& p, const KeyPart& at) {
  return p.attended + (int64_t{at.b} * p.G + at.g) * p.group * C;
}

// The warps' sums to `attended`, where they are all of the keys, else to the parts. Whether they
// are the last.
template <int C, typename T>
__device__ bool LeavePart(const LayerView<T>& p, int item, AttentionRoom<T, C>& room) {
  const KeyPart at(p, item);
  const int width = p.group * C;
  for (int e = threadIdx.x; e < width; e += kLayerThreads) {
    JoinedSums sums;
#pragma unroll 4
    for (int w = 0; w < kLayerWarps; ++w)
      sums.Add(room.most[w][e / C], room.total[w][e / C], room.out[w * width + e]);
    if (at.count == 1) {
      Attended<C>(p, at)[e] = Narrow<T>(sums.value / sums.total);
    } else {
      p.parts[int64_t{item} * width + e] = sums.value;
      if (e % C == 0)
        *reinterpret_cast<float2*>(p.ends + (item * kMostTokens + e / C) * 2) =
            make_float2(sums.most, sums.total);
    }
  }
  if (at.count == 1) return false;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) room.before = atomicAdd(p.counters + at.b * p.G + at.g, 1u);
  __syncthreads();
  return room.before + 1 == static_cast<unsigned>(at.count);
}

// All parts to `attended`, by the block that came last.
template <int C, typename T>
__device__ void JoinParts(const LayerView<T>& p, int item) {
  const KeyPart at(p, item);
  const int width = p.group * C, all = item - at.part;
  __threadfence();
  for (int e = threadIdx.x; e < width; e += kLayerThreads) {
    const float* end_at = p.ends + (all * kMostTokens + e / C) * 2;
    const float* value_at = p.parts + int64_t{all} * width + e;
    JoinedSums sums;
#pragma unroll 1
    for (int left = at.count; left > 0; left -= kAhead) {
      float2 end[kAhead];
      float value[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {  // all are on their way before one is looked at
        end[i] = i < left ? *reinterpret_cast<const float2*>(end_at) : float2{};
        value[i] = i < left ? *value_at : 0;
        end_at += 2 * kMostTokens, value_at += width;
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) sums.Add(end[i].x, end[i].y, value[i]);  // a sum of 0: none
    }
    Attended<C>(p, at)[e] = Narrow<T>(sums.value / sums.total);
  }
}

// Attention of all sequences: `attended` is written.
template <int C, typename T>
__device__ __forceinline__ void AttendToPages(const LayerView<T>& p) {
  auto& room = *reinterpret_cast<AttentionRoom<T, C>*>(SharedBytes() + kRingBytes);
#pragma unroll 1
  for (int item = blockIdx.x; item < p.B * p.G * p.most_parts; item += gridDim.x) {
    const KeyPart at(p, item);
    if (at.part >= at.count) continue;
    if (at.length == 0) {
      for (int e = threadIdx.x; e < p.group * C; e += kLayerThreads)
        Attended<C>(p, at)[e] = Narrow<T>(at.is_wrong ? NAN : 0.0f);
      continue;
    }
    __syncthreads();  // nobody reads what the item before has left
    BringHeads<C>(p, at, room);
    __syncthreads();
    AttendInWarp<C>(p, at, room);
    __syncthreads();
    // Where its keys lie is computed again: it is not kept meanwhile.
    if (LeavePart<C>(p, ComputedHere(item), room)) JoinParts<C>(p, ComputedHere(item));
  }
}

}  // namespace
}  // namespace anyop::cuda
