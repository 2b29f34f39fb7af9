// SPDX-License-Identifier: Apache-2.0
// rms_norm_backward on CUDA: each row is read once, and its scale is computed again; sums are float32
// (float64) and added in a fixed order, so the same call gives the same bits.
//
// Who does what: as many blocks as fit stay on the device and walk over rows block, block + blocks,
// ... A thread owns up to kVectors vectors of 16 bytes of every row, at places thread, thread +
// threads, ...: it copies them to shared memory some rows ahead (only it reads them there, so no
// barrier guards the ring), and keeps weight and its sums of grad_weight in registers. A row needs
// one reduction of two sums. Each block ends by writing its sums, 1/rows-th of the traffic; a second
// kernel adds them. 3 s bytes are moved an element of size s. Rows that are too long, not aligned or
// have several strides take rms_norm_backward_any.cuh, which reads them up to three times.
#include "anyop/cuda_ring.h"
#include "anyop/ops/rms_norm_backward.h"
#include "rms_norm_backward_any.cuh"

namespace anyop::cuda {
namespace {

#ifndef TUNE_STAGES
#define TUNE_STAGES 4
#endif
#ifndef TUNE_V
#define TUNE_V 1
#endif
#ifndef TUNE_PDL
#define TUNE_PDL 1
#endif

// Sums of two values over the block; every thread gets the same bits. In each warp the lanes of one
// half take over one value, so that a shuffle moves two.
template <typename Wide>
__device__ void SumBoth(Wide* first, Wide* second, Wide (&partial)[2][kMaxWarps]) {
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const bool low = lane < 16;
  const auto half = [&](Wide a, Wide b) {
    Wide mine = (low ? a : b) + __shfl_xor_sync(~0u, low ? b : a, 16);
    for (int step = 8; step; step /= 2) mine += __shfl_xor_sync(~0u, mine, step);
    return mine;
  };
  const Wide mine = half(*first, *second);
  if (lane % 16 == 0) partial[low ? 0 : 1][threadIdx.x / 32] = mine;
  __syncthreads();
  const Wide total = half(lane < warps ? partial[0][lane] : Wide(0),
                          lane < warps ? partial[1][lane] : Wide(0));
  *first = __shfl_sync(~0u, total, 0);
  *second = __shfl_sync(~0u, total, 16);
}

// Registers: 64 a thread, and 128 where a thread has four vectors.
constexpr int MaxThreads(int vectors) { return vectors == 1 ? 1024 : 512; }
#ifndef TUNE_MINB
#define TUNE_MINB 2
#endif
constexpr int MinBlocks(int vectors) { return vectors == 2 ? TUNE_MINB : 1; }

// kPlain: weight and grad_x are aligned like x; else the same sums, and stores of any kind.
template <typename T, int kVectors, bool kPlain>
__global__ void __launch_bounds__(MaxThreads(kVectors), MinBlocks(kVectors))
    GradientsInRegisters(const __grid_constant__ Gradients<T> p, int stages) {
  constexpr int kPer = kPerVector<T>;
  using W = Wide<T>;
  extern __shared__ __align__(128) uint4 memory[];
  __shared__ __align__(8) uint64_t barriers[RowRing<2>::kMaxStages];
  __shared__ W partial[2][2][kMaxWarps];
  const int threads = blockDim.x, vectors = static_cast<int>(p.D / kPer);
  const auto row_of = [&](int input, int64_t row) {
    return input == 0 ? p.grad_out.At(row) : p.x.At(row);
  };
  RowRing<2> ring(memory, barriers, stages, vectors);
  ring.Start(blockIdx.x, gridDim.x, p.rows, row_of);

  uint4 weight[kVectors] = {};
  W sums[kVectors][kPer] = {};
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = threadIdx.x + i * threads;
    if (at < vectors) weight[i] = LoadAt(p.weight + at * kPer, kPlain || p.weight_aligned);
  }
  // Where a thread has one vector there are registers to keep it unpacked.
  const auto again = [](const uint4& bits) {
    return kVectors == 1 ? Unpack<T>(bits) : UnpackAgain<T>(bits);
  };
  int turn = 0;
  for (int64_t row = blockIdx.x; row < p.rows; row += gridDim.x, turn ^= 1) {
    const uint4* held = ring.Wait();
    uint4 grad[kVectors] = {}, x[kVectors] = {};
    W squares = 0, products = 0;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int at = threadIdx.x + i * threads;
      if (at < vectors) {
        grad[i] = held[at];
        x[i] = held[vectors + at];
      }
      const Unpacked<T> g = Unpack<T>(grad[i]), v = Unpack<T>(x[i]), w = Unpack<T>(weight[i]);
#pragma unroll
      for (int k = 0; k < kPer; ++k) {
        squares = MulAdd(v.at[k], v.at[k], squares);
        products = MulAdd(g.at[k] * w.at[k], v.at[k], products);
      }
    }
    SumBoth(&squares, &products, partial[turn]);
    ring.Refill(row + int64_t{stages} * gridDim.x, p.rows, row_of);
    const W scale = ReciprocalRoot(squares * p.inverse_D + p.eps);
    const W slope = products * p.inverse_D * scale;
    T* to = !p.grad_x.data ? nullptr : kPlain ? p.grad_x.At(row) : p.grad_x[row];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const Unpacked<T> g = again(grad[i]), v = again(x[i]), w = again(weight[i]);
      Unpacked<T> result;
#pragma unroll
      for (int k = 0; k < kPer; ++k) {
        const W normal = v.at[k] * scale;
        sums[i][k] = MulAdd(g.at[k], normal, sums[i][k]);
        result.at[k] = GradientOfX(g.at[k] * w.at[k], normal, scale, slope);
      }
      const int at = threadIdx.x + i * threads;
      if (to && at < vectors) StoreAt(to + at * kPer, kPlain || p.grad_x_aligned, Pack<T>(result));
    }
  }
  LetNextStart();
  if (!p.parts) return;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const int at = threadIdx.x + i * threads;
    if (at >= vectors) continue;
    W* part = p.parts + blockIdx.x * p.D + int64_t{at} * kPer;
#pragma unroll
    for (int k = 0; k < kPer; ++k) part[k] = sums[i][k];
  }
}

// Blocks, threads and the ring of GradientsInRegisters.
struct Plan {
  int vectors_of_thread, threads, stages, blocks;
  size_t ring_bytes;
};

// False when the rows do not fit.
template <typename T>
bool MakePlan(const Gradients<T>& p, const Limits& limits, Plan* plan) {
  const int64_t vectors = p.D / kPerVector<T>;
  if (vectors > 2048) return false;
  plan->vectors_of_thread = vectors > 1024 ? 4 : vectors > 128 ? TUNE_V : 1;
  const int64_t needed = CeilDiv(vectors, plan->vectors_of_thread);
  plan->threads = static_cast<int>(CeilDiv(needed, 32) * 32);
#ifdef TUNE_BPS
  int per_multiprocessor = TUNE_BPS;
#else
  const int all_threads = plan->vectors_of_thread == 1 ? 1024 : 512;
  int per_multiprocessor = all_threads / plan->threads;
  if (per_multiprocessor > 16) per_multiprocessor = 16;
#endif
  const int64_t stage_bytes = 2 * 16 * vectors;
  const int64_t kept = 2048;  // of each block, for its own variables and the system
  const int64_t room = limits.shared_bytes / per_multiprocessor - kept;
  const int64_t most = limits.shared_bytes_of_block - kept;
  const int64_t stages = (room < most ? room : most) / stage_bytes;
  if (stages < 2) return false;
  plan->stages = static_cast<int>(stages < TUNE_STAGES ? stages : TUNE_STAGES);
  plan->ring_bytes = static_cast<size_t>(plan->stages * stage_bytes);
  const int64_t blocks = int64_t{limits.multiprocessors} * per_multiprocessor;
  plan->blocks = static_cast<int>(blocks < p.rows ? blocks : p.rows);
  return true;
}

template <typename T, int kVectors, bool kPlain>
int32_t RunPlan(AnyopCall* call, const Gradients<T>& p, const Plan& plan) {
  const auto kernel = GradientsInRegisters<T, kVectors, kPlain>;
  const auto bytes = static_cast<int>(plan.ring_bytes);
  if (int32_t status = Check(
          call, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
          "asking for shared memory"))
    return status;
  return Launch{dim3(plan.blocks), dim3(plan.threads), plan.ring_bytes}.Run(call, kernel, p,
                                                                            plan.stages);
}

template <typename T>
int32_t RunInRegisters(AnyopCall* call, Gradients<T> p, const Plan& plan, const Limits& limits) {
  if (p.grad_weight) {
    p.parts = static_cast<Wide<T>*>(
        call->workspace(call, int64_t{plan.blocks} * p.D * int64_t{sizeof(Wide<T>)}));
    if (!p.parts) return kAnyopOutOfMemory;
  }
  constexpr int kMany = TUNE_V == 2 ? 2 : 4;
  const bool plain = p.weight_aligned && p.grad_x_aligned && p.grad_x.HasOneStride();
  int32_t status;
  if (plan.vectors_of_thread == 1) {
    status = plain ? RunPlan<T, 1, true>(call, p, plan) : RunPlan<T, 1, false>(call, p, plan);
  } else {
    status =
        plain ? RunPlan<T, kMany, true>(call, p, plan) : RunPlan<T, kMany, false>(call, p, plan);
  }
  if (status) return status;
  return p.grad_weight ? AddParts(call, p, plan.blocks, TUNE_PDL && limits.major >= 9) : kAnyopOk;
}

template <typename T>
int32_t Run(const RmsNormBackwardArgs* args, AnyopCall* call) {
  Gradients<T> p = {};
  p.grad_out = RowsOf<const T>(args->grad_out);
  p.x = RowsOf<const T>(args->x);
  p.weight = static_cast<const T*>(args->weight->data);
  if (args->grad_x) p.grad_x = RowsOf<T>(args->grad_x);
  if (args->grad_weight) p.grad_weight = static_cast<T*>(args->grad_weight->data);
  p.rows = args->rows;
  p.D = args->D;
  p.inverse_D = 1 / static_cast<Wide<T>>(args->D);
  p.eps = EpsilonOf<T>(args->eps);
  if (p.D == 0 || (!p.grad_x.data && !p.grad_weight)) return kAnyopOk;
  if (p.rows == 0) return p.grad_weight ? AddParts(call, p, 0, false) : kAnyopOk;
  Limits limits;
  if (int32_t status = ReadLimits(call, &limits)) return status;
  p.grad_x_aligned = InVectors(p.grad_x, p.D);
  p.weight_aligned = IsAligned(p.weight, 16);
  // What is read in rows alone decides how sums are made: the bits do not depend on where the
  // results go, nor on which of them are wanted.
  const bool in_vectors = InVectors(p.grad_out, p.D) && InVectors(p.x, p.D);
  Plan plan;
  if (in_vectors && p.grad_out.HasOneStride() && p.x.HasOneStride() && MakePlan(p, limits, &plan))
    return RunInRegisters(call, p, plan, limits);
  return RunAny(call, p, in_vectors, limits);
}

}  // namespace
}  // namespace anyop::cuda

extern "C" int32_t anyop_rms_norm_backward_cuda(const RmsNormBackwardArgs* args, AnyopCall* call) {
  using namespace anyop::cuda;
  return WithFloating(AnyopDtypeOf(args->x),
                      [&](auto zero) { return Run<decltype(zero)>(args, call); });
}
