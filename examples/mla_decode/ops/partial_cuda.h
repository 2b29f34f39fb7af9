// SPDX-License-Identifier: Apache-2.0
// decode and sparse_decode on CUDA for any dtype and size, and what the kernel of tensor cores
// (partial_mma.h) shares with it.
//
// Who does what: a block takes kHeads heads of a part of a sequence and goes over its tokens once,
// kTile at a time, with an online softmax. Scores: a warp takes 4 tokens, its lanes the features;
// the 32 sums of a lane, 4 tokens by 8 heads, end as one in each lane after 31 shuffles. Weights:
// warp h has head h, a lane a token. Values: a thread has 2 or 4 columns of all heads in registers
// and reads the tokens again, from the first cache. Shared memory holds the scaled queries, the
// scores, which become the weights, and the tokens' rows. Scores, exponentials and sums are
// float32. Bytes read: the part of the cache once for each 8 heads, from the second cache for all
// but the first.
#pragma once

#include "anyop/cuda/rows.h"
#include "tokens.h"

namespace anyop::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kTile = 32;       // tokens at a time: a lane's each in the softmax
constexpr int kHeads = kWarps;  // heads of a block: a warp's each in the softmax

template <typename T, typename Tokens>
struct Attention {
  const T *q, *cache;
  float *partial, *lse;
  int64_t q_step_b, q_step_h, cache_step_n, cache_step_s;
  int64_t B, H, S, splits;
  int W, R;
  float scale;
  Tokens tokens;

  __device__ const T* Token(int64_t row) const {
    return cache + row / S * cache_step_n + row % S * cache_step_s;
  }
};

// The work of a block: heads h, h + 1, ... of part k of sequence b. Neighbours share the part.
struct Task {
  int64_t b, k, h;
};
__device__ inline Task TaskAt(int64_t index, int64_t head_blocks, int64_t heads, int64_t splits) {
  const int64_t part = index / head_blocks;
  return {part / splits, part % splits, index % head_blocks * heads};
}

// What of a row's token is to be: -infinity hides it, NaN shows in every result.
__device__ inline float ScoreOf(int64_t row, float sum) {
  return row >= 0 ? sum : row == mla::kAbsent ? -INFINITY : NAN;
}

// Of 32 sums in each lane, lane l gets the sum over all lanes of the l-th.
template <int kStep = 16>
__device__ float SumEach(float (&sum)[32], int lane) {
  const bool upper = (lane & kStep) != 0;
#pragma unroll
  for (int i = 0; i < kStep; ++i) {
    const float send = upper ? sum[i] : sum[i + kStep];
    const float keep = upper ? sum[i + kStep] : sum[i];
    sum[i] = keep + __shfl_xor_sync(~0u, send, kStep);
  }
  if constexpr (kStep > 1) return SumEach<kStep / 2>(sum, lane);
  return sum[0];
}

// The greatest of `lanes` lanes, a power of two; NaN are passed over.
__device__ inline float GreatestLane(float v, int lanes) {
  for (int step = lanes / 2; step; step /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, step));
  return v;
}

// A head's greatest score and sum of exponentials so far.
struct Softmax {
  float most = -INFINITY, weights = 0;

  // With a greatest score of new ones: what the sums so far are to be scaled by, and the base of
  // the new exponentials. Their sum is to be added to weights.
  struct Step {
    float less, base;
  };
  __device__ Step Raise(float score) {
    const float now = fmaxf(most, score), base = now == -INFINITY ? 0 : now;
    const Step step = {expf(most - base), base};
    most = now;
    weights *= step.less;
    return step;
  }
  __device__ float Lse() const { return weights == 0 ? -INFINITY : most + logf(weights); }
};

template <int kPairs, typename T, typename Tokens>
__global__ void __launch_bounds__(kThreads)
    AttendAny(const __grid_constant__ Attention<T, Tokens> p) {
  __shared__ float q[kHeads][mla::kMaxW];
  __shared__ float scores[kTile][kHeads];
  __shared__ int64_t rows[kTile];
  __shared__ float less[kHeads], weights[kHeads];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t head_blocks = (p.H + kHeads - 1) / kHeads, tasks = p.B * p.splits * head_blocks;
  for (int64_t index = blockIdx.x; index < tasks; index += gridDim.x) {
    const Task task = TaskAt(index, head_blocks, kHeads, p.splits);
    const int heads = static_cast<int>(p.H - task.h < kHeads ? p.H - task.h : kHeads);
    const int64_t count = p.tokens.CountOf(task.b);
    const mla::Part part = mla::PartOf(count, p.splits, task.k);
    __syncthreads();  // the task before is done with shared memory
    for (int h = 0; h < kHeads; ++h) {
      const T* from = p.q + task.b * p.q_step_b + (task.h + h) * p.q_step_h;
      for (int w = threadIdx.x; w < p.W; w += kThreads)
        q[h][w] = h < heads ? Widen(from[w]) * p.scale : 0;
    }
    Softmax softmax;  // of head warp
    float sum[kHeads][2 * kPairs] = {};
    for (int64_t first = part.begin; first < part.end; first += kTile) {
      const int tile = static_cast<int>(part.end - first < kTile ? part.end - first : kTile);
      __syncthreads();  // queries are there; the tile before is read
      const T* token[4];
      int64_t row[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int t = 4 * warp + i;
        row[i] = t < tile ? p.tokens.RowOf(task.b, first + t) : mla::kAbsent;
        token[i] = row[i] < 0 ? nullptr : p.Token(row[i]);
        if (lane == 0) rows[t] = row[i];
      }
      float products[32] = {};
      for (int w = lane; w < p.W; w += 32) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float feature = token[i] ? Widen(token[i][w]) : 0;
#pragma unroll
          for (int h = 0; h < kHeads; ++h)
            products[i * kHeads + h] = fmaf(feature, q[h][w], products[i * kHeads + h]);
        }
      }
      const float score = SumEach(products, lane);
      const int t = 4 * warp + lane / kHeads;
      __syncwarp();  // rows are noted
      scores[t][lane % kHeads] = ScoreOf(rows[t], score);
      __syncthreads();
      const float mine = scores[lane][warp];
      const auto step = softmax.Raise(GreatestLane(mine, 32));
      const float weight = expf(mine - step.base);
      softmax.weights += SumLanes(weight, 32);
      scores[lane][warp] = weight;
      if (lane == 0) less[warp] = step.less;
      __syncthreads();
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
#pragma unroll
        for (int i = 0; i < 2 * kPairs; ++i) sum[h][i] *= less[h];
      }
      for (int t = 0; t < tile; ++t) {
        if (rows[t] < 0) continue;
        const T* values = p.Token(rows[t]);
#pragma unroll
        for (int i = 0; i < 2 * kPairs; ++i) {
          const int r = threadIdx.x + i * kThreads;
          const float value = r < p.R ? Widen(values[r]) : 0;
#pragma unroll
          for (int h = 0; h < kHeads; ++h) sum[h][i] = fmaf(scores[t][h], value, sum[h][i]);
        }
      }
    }
    const bool is_outside = count == mla::kOutside;
    const int64_t at = (task.b * p.splits + task.k) * p.H + task.h;
    if (lane == 0) {
      weights[warp] = is_outside ? NAN : softmax.weights;
      if (warp < heads) p.lse[at + warp] = is_outside ? NAN : softmax.Lse();
    }
    __syncthreads();
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int i = 0; i < 2 * kPairs; ++i) {
        const int r = threadIdx.x + i * kThreads;
        if (h < heads && r < p.R)
          p.partial[(at + h) * p.R + r] = weights[h] == 0 ? 0 : sum[h][i] / weights[h];
      }
    }
  }
}

inline dim3 GridOf(int64_t tasks) {
  constexpr int64_t kMaxGrid = 0x7fffffff;
  return dim3(static_cast<unsigned>(tasks < kMaxGrid ? tasks : kMaxGrid));
}

template <typename T, typename Tokens>
int32_t RunAny(AnyopCall* call, const Attention<T, Tokens>& p) {
  const Launch launch{GridOf(p.B * p.splits * CeilDiv(p.H, kHeads)), dim3(kThreads)};
  return p.R <= 2 * kThreads ? launch.Run(call, AttendAny<1, T, Tokens>, p)
                             : launch.Run(call, AttendAny<2, T, Tokens>, p);
}

}  // namespace
}  // namespace anyop::cuda
