// SPDX-License-Identifier: Apache-2.0
// Joins parts of attention: a thread has twice 16 bytes of a row, once, or an element where rows
// are no multiples of 16 bytes, and reads them of each part; it computes the row's weights itself,
// from lses that the row's other threads read, too. Reads each part once, writes once.
#include <algorithm>
#include <cstdio>

#include "anyop/cuda.h"
#include "anyop/ops/merge_states.h"

namespace anyop::cuda {
namespace {

constexpr int kFew = 8, kMost = 240;  // parts whose addresses fit the arguments of a kernel
constexpr int kThreads = 256;

template <int kParts>
struct Parts {
  const void* outs[kParts];
  const float* lses[kParts];
  void* out;
  float* lse;
  int64_t rows, E, pieces;  // threads of a row, at least 1
  int count;
  bool aligned;
};

// A piece as it lies in memory: what waits takes half of the registers of numbers.
template <typename T, int kPer>
using Bits = std::conditional_t<kPer == 1, T, uint4>;
template <int kPer, typename T>
__device__ Bits<T, kPer> ReadBits(const T* from, bool aligned) {
  if constexpr (kPer == 1) return *from;
  if constexpr (kPer > 1) return LoadAt(from, aligned);
}
template <typename T, int kPer>
__device__ Piece<Wide<T>, kPer> WidenBits(const Bits<T, kPer>& bits) {
  if constexpr (kPer == 1) {
    return {{Widen(bits)}};
  } else {
    const Unpacked<T> wide = Unpack<T>(bits);
    return reinterpret_cast<const Piece<Wide<T>, kPer>&>(wide);
  }
}

// A thread has kPieces pieces of a row, p.pieces apart, so that neighbours read side by side.
template <typename T, int kPer, int kPieces, int kParts>
__global__ __launch_bounds__(kThreads, 4) void Merge(const __grid_constant__ Parts<kParts> p) {
  using W = Wide<T>;
  constexpr int kAtOnce = 4 / kPieces;  // parts that are read at once
  const int64_t step = int64_t{gridDim.x} * kThreads;
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < p.rows * p.pieces; i += step) {
    // 32 bits divide in a tenth of the time.
    const int64_t row =
        i <= UINT32_MAX ? static_cast<uint32_t>(i) / static_cast<uint32_t>(p.pieces) : i / p.pieces;
    const int64_t piece = i - row * p.pieces, at = row * p.E + piece * kPer;
    Bits<T, kPer> parts[kAtOnce][kPieces] = {};  // the first ones before their weights are known
    W lses[kAtOnce];
    const auto read_lses = [&](int from) {
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n)
        lses[n] = from + n < p.count ? static_cast<W>(p.lses[from + n][row]) : -W(INFINITY);
    };
    const auto read_parts = [&](int from) {
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n)
#pragma unroll
        for (int m = 0; m < kPieces; ++m)
          if (p.E > 0 && from + n < p.count)
            parts[n][m] = ReadBits<kPer>(
                static_cast<const T*>(p.outs[from + n]) + at + m * p.pieces * kPer, p.aligned);
    };
    W most = -W(INFINITY), total = 0;
    read_parts(0);
    for (int from = 0; from < p.count; from += kAtOnce) {
      read_lses(from);
#pragma unroll
      for (const W lse : lses) most = fmax(most, lse);
    }
    Piece<W, kPer> sums[kPieces] = {};
    for (int from = 0; from < p.count; from += kAtOnce) {
      if (from > 0) read_parts(from);
      if (p.count > kAtOnce) read_lses(from);
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        if (lses[n] == -W(INFINITY)) continue;
        const W weight = Exponential(lses[n] - most);
        total += weight;
#pragma unroll
        for (int m = 0; m < kPieces; ++m) {
          const Piece<W, kPer> part = WidenBits<T, kPer>(parts[n][m]);
#pragma unroll
          for (int k = 0; k < kPer; ++k) sums[m].at[k] = MulAdd(weight, part[k], sums[m].at[k]);
        }
      }
    }
    const W share = most == -W(INFINITY) && total == 0 ? W(0) : 1 / total;
#pragma unroll
    for (int m = 0; m < kPieces; ++m) {
#pragma unroll
      for (int k = 0; k < kPer; ++k) sums[m].at[k] *= share;
      if (p.E > 0)
        WritePiece<kPer>(static_cast<T*>(p.out) + at + m * p.pieces * kPer, p.aligned, sums[m]);
    }
    if (piece == 0) p.lse[row] = static_cast<float>(most + log(total));
  }
}

template <typename T, int kParts>
int32_t RunParts(const MergeStatesArgs& args, AnyopCall* call) {
  Parts<kParts> p = {};
  p.count = static_cast<int>(args.N), p.rows = args.numel_X, p.E = args.E;
  p.out = args.out->data, p.lse = static_cast<float*>(args.lse->data);
  p.aligned = IsAligned(static_cast<const char*>(p.out), 16);
  for (int n = 0; n < p.count; ++n) {
    p.outs[n] = args.outs.data[n].data;
    p.lses[n] = static_cast<const float*>(args.lses.data[n].data);
    p.aligned &= IsAligned(static_cast<const char*>(p.outs[n]), 16);
  }
  constexpr int kPer = kPerVector<T>;
  const auto run = [&](auto kernel, int64_t pieces) {
    p.pieces = pieces;
    const int64_t blocks = CeilDiv(p.rows * p.pieces, kThreads);
    const auto grid = static_cast<unsigned>(blocks < INT32_MAX ? blocks : INT32_MAX);
    return Launch{dim3(grid), dim3(kThreads)}.Run(call, kernel, p);
  };
  if (p.E > 0 && p.E % (2 * kPer) == 0) return run(Merge<T, kPer, 2, kParts>, p.E / (2 * kPer));
  if (p.E > 0 && p.E % kPer == 0) return run(Merge<T, kPer, 1, kParts>, p.E / kPer);
  return run(Merge<T, 1, 1, kParts>, std::max<int64_t>(p.E, 1));
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_merge_states_cuda(const MergeStatesArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  if (args->N > kMost) {
    char text[64];
    std::snprintf(text, sizeof text, "%lld parts, at most %d on CUDA",
                  static_cast<long long>(args->N), kMost);
    return call->fail(call, kAnyopNotImplemented, text);
  }
  if (args->numel_X == 0) return kAnyopOk;
  return WithFloating(AnyopDtypeOf(args->out), [&](auto zero) {
    using T = decltype(zero);
    return args->N <= kFew ? RunParts<T, kFew>(*args, call) : RunParts<T, kMost>(*args, call);
  });
}
