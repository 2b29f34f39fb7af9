// SPDX-License-Identifier: Apache-2.0
// What the kernel of a decoder's layer is given, and where things lie in a block's shared memory.
#pragma once

#include <algorithm>

#include "anyop/cuda/mma.h"

namespace anyop::cuda {
namespace {

constexpr int kLayerWarps = 16, kLayerThreads = 32 * kLayerWarps;
constexpr int kMostTokens = 8;  // and heads of a group: rows of a tile of mma.sync
constexpr int kTileRows = 8;    // of a weight
constexpr int kStepColumns = 32 * kLayerWarps;

template <typename T>
struct Cache {
  T* data;
  int64_t page_step, place_step, head_step;
};

// `halves` matrices (rows, columns) below one another, whose rows are read together.
template <typename T>
struct Weights {
  const T* data;
  int rows, columns, halves;
  __device__ int Tiles() const { return (rows + kTileRows - 1) / kTileRows; }
  __device__ int Steps() const { return (columns + kStepColumns - 1) / kStepColumns; }
};
enum Phase { kHeads, kOut, kGate, kDown, kPhases };

template <typename T>
struct LayerView {
  Weights<T> weights[kPhases];
  Cache<T> keys, values;
  const T *x, *delta, *attention_norm, *ffn_norm;
  const T *q_norm, *k_norm, *bias;  // nullptr: none, as delta
  const void *cos, *sin;
  const int32_t *table, *lengths;
  T *x_out, *delta_out;
  // Workspace. heads: the first product; added: the second; parts, ends: of keys, as warps leave
  // them; counters: parts that are there.
  float *heads, *added, *parts, *ends;
  T *attended, *gated;
  unsigned* counters;
  int B, D, F, H, G, N, P, M, L;
  int group, most_parts;  // heads of a group; parts of a sequence's keys
  int room;               // elements of T for the rows that a product reads
  float eps, scale;       // of scores, times log2(e)
  bool is_wide_table;     // cos and sin are float32
  // At multiples of 16 bytes: weights; rows of features; heads in the caches.
  bool aligned_weights, aligned_rows, aligned_heads;
};

// Shared memory: the ring of weights, and behind it what attention has, or else the sums of warps
// (two, which take turns), a few numbers, and the rows that a product reads.
constexpr int kStages = 11;  // so that 8 heads of 128 features have room on an A100
constexpr uint32_t kRingBytes = kStages * kLayerThreads * 16;
constexpr uint32_t kSumBytes = 2 * kLayerWarps * 2 * 64 * sizeof(float);
constexpr uint32_t kNumberBytes = kLayerWarps * sizeof(float);
constexpr uint32_t kFixedBytes = kRingBytes + kSumBytes + kNumberBytes;
constexpr int kRowPad = 32;  // elements: rows of two tokens lie in all banks

__device__ inline uint8_t* SharedBytes() { return reinterpret_cast<uint8_t*>(DynamicShared()); }
__device__ inline float* SharedSums() {
  return reinterpret_cast<float*>(SharedBytes() + kRingBytes);
}
__device__ inline float* SharedNumbers() {
  return reinterpret_cast<float*>(SharedBytes() + kRingBytes + kSumBytes);
}
template <typename T>
__device__ T* SharedRows() {
  return reinterpret_cast<T*>(SharedBytes() + kFixedBytes);
}

// d (tokens x 8 rows) += 32 columns of 8 tokens by those of 8 rows of weights; lane l has eight
// columns, 8 (l % 4) and on, of token and of row l / 4, and d of that token for rows 2 (l % 4) and
// the next. Which columns are multiplied together does not matter, as long as they are the same.
template <typename T>
__device__ void AddProducts(float (&d)[4], const uint4& tokens, const uint32_t (&rows)[4]) {
  constexpr Operand kType = std::is_same_v<T, __half> ? Operand::kFloat16 : Operand::kBFloat16;
  MultiplyAdd<kType>(d, {tokens.x, 0, tokens.y, 0}, rows[0], rows[1]);
  MultiplyAdd<kType>(d, {tokens.z, 0, tokens.w, 0}, rows[2], rows[3]);
}
__device__ inline float SumOfWarp(float v) {
  for (int by = 16; by > 0; by /= 2) v += __shfl_xor_sync(~0u, v, by);
  return v;
}

}  // namespace
}  // namespace anyop::cuda
