// SPDX-License-Identifier: Apache-2.0
// The logits of linear_cross_entropy on CUDA: some classes of all rows at a time, and what the
// threads of a row read of them.
#pragma once

#include <algorithm>

#include "../linear/cuda_product.h"
#include "anyop/cuda/rows.h"

namespace anyop::cuda {
namespace {

constexpr int kLossThreads = 256;

// Blocks of classes, multiples of 1,024 but the last: 64 MiB of logits in float32, or 4 KiB for
// each row where that is more; with their gradient in 16 bits half as much again.
inline int64_t ClassesOfBlock(int64_t rows, int64_t V) {
  constexpr int64_t kBytes = 64 << 20, kLeast = 1024;
  const int64_t fit = kBytes / 4 / std::max<int64_t>(rows, 1) / kLeast * kLeast;
  return std::min(V, std::max(kLeast, fit));
}

// Elements from `first` on of a tensor without gaps.
template <typename T>
T* From(const AnyopTensor* tensor, int64_t first) {
  return static_cast<T*>(tensor->data) + first;
}

// x (rows, K) by classes [first, first + n) of weight: sums, not rounded and without bias.
template <typename T>
cublaslt::Product LogitsOf(const AnyopTensor* x, const AnyopTensor* weight, int64_t rows, int64_t K,
                           int64_t first, int64_t n, Wide<T>* logits) {
  cublaslt::Product p;
  p.dtype = AnyopDtypeOf(x);
  p.out_dtype = sizeof(T) == 8 ? kAnyopFloat64 : kAnyopFloat32;
  p.M = rows, p.N = n, p.K = K;
  p.a = {x->data, K, 1, 0};
  p.b = {From<T>(weight, first * K), 1, K, 0};
  p.out = logits;
  p.out_row_stride = n;
  return p;
}

// What the threads of a row know of a block.
template <typename T>
struct LossBlock {
  using W = Wide<T>;
  W* logits;      // (rows, n)
  const T* bias;  // of the block's classes; NULL: none
  const void* target;
  int64_t rows, V, first, ignored;
  int n;
  bool narrow;  // targets are int32
  W softcap, inverse_cap, smoothing, z_loss;

  template <typename Args>
  LossBlock(const Args& args, int64_t rows)
      : logits(nullptr),
        bias(nullptr),
        target(args.target->data),
        rows(rows),
        V(args.V),
        first(0),
        ignored(args.ignore_index),
        n(0),
        narrow(args.target->dtype_bits == 32),
        softcap(static_cast<W>(args.softcap)),
        inverse_cap(static_cast<W>(args.softcap > 0 ? 1 / args.softcap : 0)),
        smoothing(static_cast<W>(args.label_smoothing)),
        z_loss(static_cast<W>(args.z_loss)) {}

  __device__ int64_t TargetOf(int64_t row) const {
    return narrow ? static_cast<const int32_t*>(target)[row]
                  : static_cast<const int64_t*>(target)[row];
  }
  __device__ bool Inside(int64_t class_of_row) const {
    return static_cast<uint64_t>(class_of_row) < static_cast<uint64_t>(V);
  }
  // softcap * tanh(v / softcap), or v.
  __device__ W Cap(W v) const { return softcap > 0 ? softcap * tanh(v * inverse_cap) : v; }
  // kPer logits, with bias and cap; 0 <= at < n.
  template <int kPer>
  __device__ Vector<W, kPer> Read(const W* row, int at) const {
    auto v = *reinterpret_cast<const Vector<W, kPer>*>(row + at);
    if (bias) {
      const auto b = *reinterpret_cast<const Vector<T, kPer>*>(bias + at);
#pragma unroll
      for (int k = 0; k < kPer; ++k) v.at[k] += Widen(b.at[k]);
    }
#pragma unroll
    for (int k = 0; k < kPer; ++k) v.at[k] = Cap(v.at[k]);
    return v;
  }
};

// Calls run with how many logits a thread takes at once, as a type: 16 bytes of T where all rows
// of n and the bias lie so. Rows of workspace begin at multiples of 64 bytes.
template <typename T, typename Run>
int32_t WithPieces(const LossBlock<T>& block, const Run& run) {
  constexpr int kPer = sizeof(T) == 8 ? 1 : kPerVector<T>;
  if (block.n % kPer == 0 && IsAligned(block.bias, kPer * sizeof(T)))
    return run(std::integral_constant<int, kPer>());
  return run(std::integral_constant<int, 1>());
}

// A block of threads for each row of n logits.
inline Launch LossLaunch(int64_t rows, int64_t n, int per) {
  const int64_t threads = CeilDiv(CeilDiv(n, per), 32) * 32;
  return {
      dim3(static_cast<unsigned>(std::min<int64_t>(rows, 0x7fffffff))),
      dim3(static_cast<unsigned>(std::min<int64_t>(std::max<int64_t>(threads, 32), kLossThreads)))};
}

}  // namespace
}  // namespace anyop::cuda
