// SPDX-License-Identifier: Apache-2.0
// decode and sparse_decode on tensor cores: 16-bit floats whose rows are whole tiles.
//
// Who does what: a block of 8 warps takes 16 or 32 heads of a part of a sequence and goes over its
// tokens once, kTile at a time, with an online softmax. Queries, tokens, scores and weights lie in
// shared memory; the next tile of tokens comes there while one is worked on, where a block may have
// room for two. Scores: a warp takes 8 tokens, all heads, and half of the features. Weights: 8 or
// 16 threads share a head. Values: a warp has 64 columns of all heads in registers. Scores,
// exponentials and sums are float32; for the product with the values a weight is the sum of two
// numbers of the dtype, which keeps twice its digits.
// Bytes read: the part of the cache once for each 16 or 32 heads, from the second cache for all but
// the first.
#pragma once

#include "partial_cuda.h"
#include "tensor_cores.h"

namespace anyop::cuda {
namespace {

constexpr int kColumns = 64;  // of a warp
constexpr int kScoreRow = kTile + 4;
constexpr int kWeightRow = kTile + 8;  // 80 bytes: eight rows of 16 bytes meet no bank twice

// What lies in the block's shared memory. A row of a token has 16 bytes more than it needs, an odd
// number of 16 bytes, for the same reason.
template <typename T, int kRows, int kTiles>
struct Shared {
  T *q, *tokens;
  T* weights;     // the rounded ones, then what was rounded off
  float* scores;  // of two halves of the features
  int row;

  __host__ __device__ static int RowOf(int W) { return W + 8; }
  static int64_t BytesOf(int W) {
    return int64_t{kRows + kTiles * kTile} * RowOf(W) * 2 + 2 * kRows * kScoreRow * 4 +
           2 * kRows * kWeightRow * 2;
  }
  __device__ Shared(unsigned char* memory, int W) : row(RowOf(W)) {
    q = reinterpret_cast<T*>(memory);
    tokens = q + kRows * row;
    scores = reinterpret_cast<float*>(tokens + kTiles * kTile * row);
    weights = reinterpret_cast<T*>(scores + 2 * kRows * kScoreRow);
  }
  __device__ T* Tile(int tile) const { return tokens + tile * kTile * row; }
};

// Starts to copy the tokens from `first` on, and notes their rows of the cache.
template <typename T, typename Tokens>
__device__ void StartTile(const Attention<T, Tokens>& p, int64_t b, int64_t first, int64_t end,
                          int64_t* rows, T* to, int to_row) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t row = first + lane < end ? p.tokens.RowOf(b, first + lane) : mla::kAbsent;
  const T* place = row < 0 ? p.q : p.Token(row);
  if (warp == 0) rows[lane] = row;
  for (int t = warp; t < kTile; t += kWarps) {
    const bool is_there = __shfl_sync(~0u, row, t) >= 0;
    const auto* from = reinterpret_cast<const T*>(
        __shfl_sync(~0u, reinterpret_cast<unsigned long long>(place), t));
    for (int w = lane * 8; w < p.W; w += 256)
      StartCopy(to + t * to_row + w, is_there ? from + w : from, is_there);
  }
}

// One half of the scores of 8 tokens: every second 32 features.
template <typename T, int kRows, int kTiles>
__device__ void AddScores(const Shared<T, kRows, kTiles>& s, const T* tokens, int W) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, first = warp % 4 * 8, half = warp / 4;
  float sum[kRows / 16][4] = {};
  for (int w = half * 32; w < W; w += 64) {
    unsigned b[4];
    LoadTiles(b, tokens + (first + lane % 8) * s.row + w + lane / 8 * 8);
#pragma unroll
    for (int m = 0; m < kRows / 16; ++m) {
      const T* q = s.q + (m * 16 + lane % 16) * s.row + w + lane / 16 * 8;
      unsigned a[4];
      LoadTiles(a, q);
      MultiplyTiles(T(), sum[m], a, b[0], b[1]);
      LoadTiles(a, q + 16);
      MultiplyTiles(T(), sum[m], a, b[2], b[3]);
    }
  }
  float* to = s.scores + (half * kRows + lane / 4) * kScoreRow + first + lane % 4 * 2;
#pragma unroll
  for (int m = 0; m < kRows / 16; ++m, to += 16 * kScoreRow) {
    to[0] = sum[m][0];
    to[1] = sum[m][1];
    to[8 * kScoreRow] = sum[m][2];
    to[8 * kScoreRow + 1] = sum[m][3];
  }
}

// Scores to weights. less: what the sums so far of each head are to be scaled by.
template <typename T, int kRows, int kTiles>
__device__ void Weigh(const Shared<T, kRows, kTiles>& s, const int64_t* rows, float scale,
                      Softmax& softmax, float* less) {
  constexpr int kLanes = kThreads / kRows, kCount = kTile / kLanes;
  const int head = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const float* scores = s.scores + head * kScoreRow + lane;
  float score[kCount], most = -INFINITY;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float sum = scores[i * kLanes] + scores[kRows * kScoreRow + i * kLanes];
    score[i] = ScoreOf(rows[lane + i * kLanes], sum * scale);
    most = fmaxf(most, score[i]);
  }
  const auto step = softmax.Raise(GreatestLane(most, kLanes));
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float weight = expf(score[i] - step.base);
    sum += weight;
    const T rounded = Narrow<T>(weight);
    T* to = s.weights + head * kWeightRow + lane + i * kLanes;
    to[0] = rounded;
    to[kRows * kWeightRow] = Narrow<T>(weight - Widen(rounded));
  }
  softmax.weights += SumLanes(sum, kLanes);
  if (lane == 0) less[head] = step.less;
}

// The warp's columns: scales the sums so far, adds weights times values.
template <typename T, int kRows, int kTiles>
__device__ void AddValues(const Shared<T, kRows, kTiles>& s, const T* tokens, const float* less,
                          int R, float (&sum)[kRows / 16][kColumns / 8][4]) {
  const int lane = threadIdx.x % 32, first = threadIdx.x / 32 * kColumns;
#pragma unroll
  for (int m = 0; m < kRows / 16; ++m) {
    const float upper = less[m * 16 + lane / 4], lower = less[m * 16 + lane / 4 + 8];
#pragma unroll
    for (int n = 0; n < kColumns / 8; ++n) {
      sum[m][n][0] *= upper;
      sum[m][n][1] *= upper;
      sum[m][n][2] *= lower;
      sum[m][n][3] *= lower;
    }
  }
#pragma unroll
  for (int t = 0; t < kTile; t += 16) {
    unsigned a[kRows / 16][4], rest[kRows / 16][4];
#pragma unroll
    for (int m = 0; m < kRows / 16; ++m) {
      const T* weights = s.weights + (m * 16 + lane % 16) * kWeightRow + t + lane / 16 * 8;
      LoadTiles(a[m], weights);
      LoadTiles(rest[m], weights + kRows * kWeightRow);
    }
#pragma unroll
    for (int n = 0; n < kColumns / 8; n += 2) {
      if (first + n * 8 >= R) break;
      unsigned b[4];
      LoadTurnedTiles(b, tokens + (t + lane % 16) * s.row + first + n * 8 + lane / 16 * 8);
#pragma unroll
      for (int m = 0; m < kRows / 16; ++m) {
        MultiplyTiles(T(), sum[m][n], a[m], b[0], b[1]);
        MultiplyTiles(T(), sum[m][n], rest[m], b[0], b[1]);
        MultiplyTiles(T(), sum[m][n + 1], a[m], b[2], b[3]);
        MultiplyTiles(T(), sum[m][n + 1], rest[m], b[2], b[3]);
      }
    }
  }
}

template <int kRows, int kTiles, typename T, typename Tokens>
__global__ void __launch_bounds__(kThreads, 2)
    AttendTiles(const __grid_constant__ Attention<T, Tokens> p) {
  extern __shared__ __align__(16) unsigned char memory[];
  __shared__ int64_t rows[kTiles][kTile];
  __shared__ float less[kRows], weights[kRows];
  const Shared<T, kRows, kTiles> s(memory, p.W);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t head_blocks = (p.H + kRows - 1) / kRows, tasks = p.B * p.splits * head_blocks;
  for (int64_t index = blockIdx.x; index < tasks; index += gridDim.x) {
    const Task task = TaskAt(index, head_blocks, kRows, p.splits);
    const int heads = static_cast<int>(p.H - task.h < kRows ? p.H - task.h : kRows);
    const int64_t count = p.tokens.CountOf(task.b);
    const mla::Part part = mla::PartOf(count, p.splits, task.k);
    __syncthreads();  // the task before is done with shared memory
    for (int h = warp; h < kRows; h += kWarps) {
      const T* from = p.q + task.b * p.q_step_b + (task.h + h) * p.q_step_h;
      for (int w = lane * 8; w < p.W; w += 256)
        StartCopy(s.q + h * s.row + w, h < heads ? from + w : p.q, h < heads);
    }
    Softmax softmax;  // of head threadIdx.x / (kThreads / kRows)
    float sum[kRows / 16][kColumns / 8][4] = {};
    constexpr int kAhead = kTiles - 1;
    const auto start = [&](int64_t first, int tile) {
      if (first < part.end) StartTile(p, task.b, first, part.end, rows[tile], s.Tile(tile), s.row);
      CloseGroup();
    };
    if (kAhead) start(part.begin, 0);
    int tile = 0;
    for (int64_t first = part.begin; first < part.end; first += kTile, tile ^= kAhead) {
      start(first + kAhead * kTile, tile ^ kAhead);
      WaitForGroups<kAhead>();
      __syncthreads();
      AddScores(s, s.Tile(tile), p.W);
      __syncthreads();
      Weigh(s, rows[tile], p.scale, softmax, less);
      __syncthreads();
      AddValues(s, s.Tile(tile), less, p.R, sum);
      __syncthreads();  // the tile is read
    }
    constexpr int kLanes = kThreads / kRows;
    const int head = threadIdx.x / kLanes;
    const bool is_outside = count == mla::kOutside;
    const int64_t at = (task.b * p.splits + task.k) * p.H + task.h;
    if (threadIdx.x % kLanes == 0) {
      weights[head] = is_outside ? NAN : softmax.weights;
      if (head < heads) p.lse[at + head] = is_outside ? NAN : softmax.Lse();
    }
    WaitForCopies();  // of queries that no token met
    __syncthreads();
#pragma unroll
    for (int m = 0; m < kRows / 16; ++m) {
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int h = m * 16 + lane / 4 + i / 2 * 8;
          const int r = warp * kColumns + n * 8 + lane % 4 * 2 + i % 2;
          if (h < heads && r < p.R)
            p.partial[(at + h) * p.R + r] = weights[h] == 0 ? 0 : sum[m][n][i] / weights[h];
        }
      }
    }
  }
}

template <typename T, typename Tokens>
bool FitsTiles(const Attention<T, Tokens>& p) {
  const bool is_aligned = IsAligned(p.q, 16) && IsAligned(p.cache, 16) && p.q_step_b % 8 == 0 &&
                          p.q_step_h % 8 == 0 && p.cache_step_n % 8 == 0 && p.cache_step_s % 8 == 0;
  return is_aligned && p.W % 32 == 0 && p.R % 16 == 0 && p.R <= kWarps * kColumns;
}

template <int kRows, int kTiles, typename T, typename Tokens>
int32_t RunTiles(AnyopCall* call, const Attention<T, Tokens>& p) {
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  const int64_t bytes = Shared<T, kRows, kTiles>::BytesOf(p.W);
  if (bytes + 2048 > limits.shared_bytes_of_block) {  // with the static ones
    if constexpr (kTiles > 1) return RunTiles<kRows, 1>(call, p);
    return RunAny(call, p);
  }
  const auto kernel = AttendTiles<kRows, kTiles, T, Tokens>;
  const cudaError_t error = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
  if (int32_t status = Check(call, error, "asking for shared memory")) return status;
  const Launch launch{GridOf(p.B * p.splits * CeilDiv(p.H, kRows)), dim3(kThreads),
                      static_cast<size_t>(bytes)};
  return launch.Run(call, kernel, p);
}

}  // namespace
}  // namespace anyop::cuda
