// SPDX-License-Identifier: Apache-2.0
// rms_norm on CUDA: a row stays in the registers of the threads that share it; sums are float32
// (float64).
//
// Who does what: rows of up to 128 vectors of 16 bytes belong to 1 to 32 lanes of a warp, longer
// ones to a block. Each thread loads up to kVectors vectors, at places lane, lane + lanes, ...; one
// reduction (shuffles, and for a block one barrier) gives every thread the sum; then it scales and
// stores what it holds. 2 s bytes are moved an element of size s. Rows that are too long or not
// aligned are read twice, the second time from the second cache.
#include "anyop/cuda_rows.h"
#include "anyop/ops/rms_norm.h"

namespace anyop::cuda {
namespace {

template <typename T>
struct Norm {
  Rows<const T> x;
  Rows<T> out;
  const T* weight;
  int64_t rows, D;
  Wide<T> eps, inverse_D;
  int lanes;                         // threads of a row
  bool out_aligned, weight_aligned;  // to 16 bytes, in every row
};

// Rows of up to 32 vectors, of up to 1,024 and longer ones. Threads of a block at most, and blocks
// that must fit on a multiprocessor, so that enough loads are on their way.
constexpr int VectorsOfThread(int64_t vectors) {
  return vectors <= 32 ? 1 : vectors <= 1024 ? 4 : 8;
}
constexpr int MaxThreads(int of_thread) {
  return of_thread == 1 ? 128 : of_thread == 4 ? 256 : 1024;
}
constexpr int MinBlocks(int of_thread) { return of_thread == 1 ? 8 : of_thread == 4 ? 4 : 1; }

// kPlain: weight and result are aligned like x; else the same sums, and stores of any kind.
template <typename T, int kVectors, bool kPlain>
__global__ void __launch_bounds__(MaxThreads(kVectors), MinBlocks(kVectors))
    NormInRegisters(const __grid_constant__ Norm<T> p) {
  constexpr int kPer = kPerVector<T>;
  __shared__ Wide<T> partial[2][kMaxWarps];
  const int lane = threadIdx.x % p.lanes, vectors = static_cast<int>(p.D / kPer);
  const int rows_of_block = blockDim.x / p.lanes;
  int turn = 0;
  for (int64_t first = int64_t{blockIdx.x} * rows_of_block; first < p.rows;
       first += int64_t{gridDim.x} * rows_of_block, turn ^= 1) {
    const int64_t row = first + threadIdx.x / p.lanes;
    const int mine = row < p.rows ? vectors : 0;
    const auto* x = reinterpret_cast<const uint4*>(p.x.At(row)) + lane;
    uint4 held[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      held[i] = {};
      if (lane + i * p.lanes < mine) held[i] = LoadNow(x + i * p.lanes);
    }
    Wide<T> sum = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const Unpacked<T> v = Unpack<T>(held[i]);
#pragma unroll
      for (int k = 0; k < kPer; ++k) sum = MulAdd(v.at[k], v.at[k], sum);
    }
    // The weight is on its way while the threads meet, where there are registers for it.
    constexpr bool kEarly = kVectors <= 4;
    uint4 weight[kEarly ? kVectors : 1];
#pragma unroll
    for (int i = 0; kEarly && i < kVectors; ++i) {
      const int at = lane + i * p.lanes;
      if (at < mine) weight[i] = LoadAt(p.weight + at * kPer, kPlain || p.weight_aligned);
    }
    sum = SumRow(sum, p.lanes, partial[turn]);
    const Wide<T> scale = ReciprocalRoot(sum * p.inverse_D + p.eps);
    T* out = kPlain ? p.out.At(row) : p.out[mine ? row : 0];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int at = lane + i * p.lanes;
      if (at >= mine) continue;
      const Unpacked<T> w =
          Unpack<T>(kEarly ? weight[kEarly ? i : 0]
                           : LoadKept(p.weight + at * kPer, kPlain || p.weight_aligned));
      Unpacked<T> v = UnpackAgain<T>(held[i]);
#pragma unroll
      for (int k = 0; k < kPer; ++k) v.at[k] *= scale * w.at[k];
      StoreAt(out + at * kPer, kPlain || p.out_aligned, Pack<T>(v));
    }
  }
}

// Any row: two passes, a block for each row, in pieces of 16 bytes or of one element.
template <typename T, int kPer>
__global__ void __launch_bounds__(1024) NormInTwoPasses(const __grid_constant__ Norm<T> p) {
  __shared__ Wide<T> partial[2][kMaxWarps];
  const int64_t pieces = p.D / kPer;
  int turn = 0;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x, turn ^= 1) {
    const T* x = p.x[row];
    T* out = p.out[row];
    Wide<T> sum = 0;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < pieces; i += blockDim.x) {
      const auto v = ReadPiece<kPer>(x + i * kPer, true);
#pragma unroll
      for (int k = 0; k < kPer; ++k) sum = MulAdd(v.at[k], v.at[k], sum);
    }
    const Wide<T> scale = ReciprocalRoot(SumRow(sum, p.lanes, partial[turn]) * p.inverse_D + p.eps);
#pragma unroll 2
    for (int64_t i = threadIdx.x; i < pieces; i += blockDim.x) {
      auto v = ReadPiece<kPer>(x + i * kPer, true);
      const auto w = ReadPiece<kPer>(p.weight + i * kPer, p.weight_aligned);
#pragma unroll
      for (int k = 0; k < kPer; ++k) v.at[k] *= scale * w.at[k];
      WritePiece<kPer>(out + i * kPer, p.out_aligned, v);
    }
  }
}

constexpr int64_t kMaxGrid = 0x7fffffff;

template <typename T, bool kPlain>
int32_t RunInRegisters(AnyopCall* call, Norm<T> p) {
  const int64_t vectors = p.D / kPerVector<T>;
  const int per_thread = VectorsOfThread(vectors);
  const int64_t needed = CeilDiv(vectors, per_thread);
  p.lanes = 1;
  while (p.lanes < needed && p.lanes < 32) p.lanes *= 2;
  if (needed > 32) p.lanes = static_cast<int>(CeilDiv(needed, 32) * 32);
  const int threads = p.lanes <= 32 ? 128 : p.lanes;
  const int64_t blocks = CeilDiv(p.rows, threads / p.lanes);
  const Launch launch{dim3(static_cast<unsigned>(blocks < kMaxGrid ? blocks : kMaxGrid)),
                      dim3(threads)};
  switch (per_thread) {
    case 1:
      return launch.Run(call, NormInRegisters<T, 1, kPlain>, p);
    case 4:
      return launch.Run(call, NormInRegisters<T, 4, kPlain>, p);
    default:
      return launch.Run(call, NormInRegisters<T, 8, kPlain>, p);
  }
}

template <typename T>
int32_t RunInTwoPasses(AnyopCall* call, Norm<T> p, bool vectors) {
  const int64_t pieces = vectors ? p.D / kPerVector<T> : p.D;
  const int64_t needed = CeilDiv(CeilDiv(pieces, 4), 32) * 32;
  p.lanes = 1024;  // the whole block, however large it is
  const int threads = static_cast<int>(needed < 64 ? 64 : needed > 1024 ? 1024 : needed);
  const Launch launch{dim3(static_cast<unsigned>(p.rows < kMaxGrid ? p.rows : kMaxGrid)),
                      dim3(threads)};
  return vectors ? launch.Run(call, NormInTwoPasses<T, kPerVector<T>>, p)
                 : launch.Run(call, NormInTwoPasses<T, 1>, p);
}

template <typename T>
int32_t Run(const RmsNormArgs* args, AnyopCall* call) {
  Norm<T> p = {};
  p.x = RowsOf<const T>(args->x);
  p.out = RowsOf<T>(args->out);
  p.weight = static_cast<const T*>(args->weight->data);
  p.rows = args->rows;
  p.D = args->D;
  p.inverse_D = 1 / static_cast<Wide<T>>(args->D);
  p.eps = EpsilonOf<T>(args->eps);
  if (p.rows == 0 || p.D == 0) return kAnyopOk;
  p.out_aligned = InVectors(p.out, p.D);
  p.weight_aligned = IsAligned(p.weight, 16);
  // x alone decides how sums are made, so that the bits do not depend on where the result goes.
  constexpr int64_t kMaxVectors = 8 * 1024;
  const bool in_vectors = InVectors(p.x, p.D);
  const bool in_registers = in_vectors && p.x.HasOneStride() && p.D <= kMaxVectors * kPerVector<T>;
  if (!in_registers) return RunInTwoPasses(call, p, in_vectors);
  const bool plain = p.weight_aligned && p.out_aligned && p.out.HasOneStride();
  return plain ? RunInRegisters<T, true>(call, p) : RunInRegisters<T, false>(call, p);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_rms_norm_cuda(const RmsNormArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return WithFloating(AnyopDtypeOf(args->x),
                      [&](auto zero) { return Run<decltype(zero)>(args, call); });
}
